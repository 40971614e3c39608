"""Checkpoints of the timer store, recovery and repair."""
