"""Tables of scheduled messages for data teams: incremental export to Parquet."""
