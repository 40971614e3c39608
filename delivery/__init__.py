"""What levels and timers share: redirected records, ownership, quarantine, pending, lateness."""
