"""Levels become timers while the broker runs, and go back; the log holds every step."""
