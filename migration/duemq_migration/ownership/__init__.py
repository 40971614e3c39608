"""Ownership of messages during a migration: level states, transitions, checksums."""
