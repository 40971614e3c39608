"""Pages of the console: each returns blocks from the state of brokers."""
