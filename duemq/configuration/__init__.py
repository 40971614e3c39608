"""Broker configuration: sections, files, changes by request."""
