"""Lateness by topic and hour: `spark-submit lateness_by_hour.py /data/tables`."""

from __future__ import annotations

import argparse

from pyspark.sql import DataFrame, SparkSession

QUERY = """
    SELECT topic, date_trunc('HOUR', timestamp_millis(delivered_ms)) AS hour,
           count(*) AS deliveries,
           percentile(late_ms, array(0.5, 0.99, 0.999)) AS p50_p99_p999_ms,
           max(late_ms) AS max_ms
    FROM delivered WHERE late_ms >= 0
    GROUP BY topic, hour ORDER BY topic, hour
"""


def lateness(spark: SparkSession, tables: str) -> DataFrame:
    """Return the percentiles of each topic and hour; `lateness` has those of each minute."""
    spark.read.parquet(f"{tables}/delivered").createOrReplaceTempView("delivered")
    return spark.sql(QUERY)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("tables", help="directory of `duemq reconcile export`")
    given = parser.parse_args()
    lateness(SparkSession.builder.getOrCreate(), given.tables).show(1_000, truncate=False)
