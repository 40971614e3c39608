"""Message store: the commit log, its queues and indexes, recovery, retention, verification."""
