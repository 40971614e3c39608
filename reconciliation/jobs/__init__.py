"""Audit runs, and jobs beside the audit."""
