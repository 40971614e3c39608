"""Ground of all packages: clock, errors, configuration, JSON, text, requests, the ledger."""
