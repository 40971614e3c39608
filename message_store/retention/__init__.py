"""Retention of log files, and the pins that keep them."""
