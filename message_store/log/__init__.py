"""Commit log: files, records, batches, flushing, unreadable ranges."""
