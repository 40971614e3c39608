"""Columns to verdicts: what became of every scheduled message."""
