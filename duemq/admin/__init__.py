"""Request processing of administrative tools."""
