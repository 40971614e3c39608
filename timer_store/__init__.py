"""Timers: messages delivered at any millisecond, in Apache's timer log and wheel."""
