"""Migration of levels to timers and back while the broker runs; the log records every step."""
