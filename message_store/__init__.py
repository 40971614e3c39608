"""Message store: the commit log, and its projections: queues, indexes, retention, checks."""
