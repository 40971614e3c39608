"""Recurring schedules: definitions in the log, and the next occurrence of each as a timer."""
