"""Audit runs, and jobs on their verdicts."""
