"""Compiled loops that levels and timers share."""
