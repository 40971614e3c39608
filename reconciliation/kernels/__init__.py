"""Compiled loops of the audit: starts of records, and their properties."""
