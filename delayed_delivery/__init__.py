"""Shared code of levels and timers: redirected records, ownership, quarantine, lateness."""
