"""Spark: session, data source, stream."""
