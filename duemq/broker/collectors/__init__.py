"""Collectors of the metrics of a running broker, and their endpoint."""
