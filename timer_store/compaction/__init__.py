"""Compaction: copies pending timers out of old log files, so that the files can be removed."""
