"""Failovers of real processes under load."""
