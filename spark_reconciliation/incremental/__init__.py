"""Incremental audits: the result of a full one, from saved state and what is new."""
