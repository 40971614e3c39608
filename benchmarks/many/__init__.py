"""Measurement of one broker with many topics, groups and connections at once."""
