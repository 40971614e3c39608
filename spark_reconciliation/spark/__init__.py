"""Spark session, data source and stream."""
