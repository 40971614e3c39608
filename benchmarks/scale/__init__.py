"""Measurement of one broker with up to 10^8 pending timers, in phases on one store."""
