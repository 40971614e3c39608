"""Pending timers: lookup, lists, counts, decisions, forecast."""
