"""Compiled loops of the migration."""
