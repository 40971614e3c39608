"""Compiled loops of the timer store."""
