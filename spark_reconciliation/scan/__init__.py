"""Scan: from files of a store to columns."""
