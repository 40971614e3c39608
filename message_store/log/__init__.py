"""The commit log: files, records, batches, flushing, unreadable places."""
