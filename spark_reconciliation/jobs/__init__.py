"""Audit runs, and jobs on verdicts."""
