"""The part of Spark's DataFrame API that the audit uses, executed by DuckDB in this process."""
