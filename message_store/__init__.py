"""The commit log, and what is derived from it: queues, indexes, retention, checks."""
