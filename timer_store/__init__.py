"""Timers: messages held until any millisecond, in Apache's timer log and wheel."""
