"""Metrics of a running broker: counters, Prometheus endpoint, Apache's native metrics."""
