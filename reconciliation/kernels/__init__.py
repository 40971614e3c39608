"""Compiled loops of the audit: where records begin, and what their properties say."""
