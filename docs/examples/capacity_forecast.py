"""What falls due, and the backlog at a rate: `spark-submit capacity_forecast.py TABLES 20000`.

The second argument is the number of messages that the brokers deliver per second.
"""

from __future__ import annotations

import argparse

from pyspark.sql import DataFrame, SparkSession

TABLES = ("scheduled", "delivered", "decisions")
QUERY = """
    WITH ended AS (
        SELECT broker, scheduled_offset FROM delivered
        UNION SELECT broker, scheduled_offset FROM decisions
        WHERE decision IN ('cancelled', 'quarantined')
    ), moved AS (
        SELECT broker, scheduled_offset, max_by(due_ms, log_offset) AS due_ms
        FROM decisions WHERE decision = 'moved' GROUP BY broker, scheduled_offset
    ), pending AS (
        SELECT coalesce(m.due_ms, s.due_ms) div 60000 AS minute
        FROM scheduled s
        LEFT JOIN moved m ON m.broker = s.broker AND m.scheduled_offset = s.log_offset
        LEFT ANTI JOIN ended e ON e.broker = s.broker AND e.scheduled_offset = s.log_offset
    ), due AS (
        SELECT minute, count(*) AS messages FROM pending WHERE minute IS NOT NULL GROUP BY minute
    ), sums AS (
        SELECT minute, messages,
               sum(messages) OVER (ORDER BY minute) - {per_minute} * (minute + 1) AS surplus
        FROM due
    )
    SELECT timestamp_millis(minute * 60000) AS minute, messages,
           greatest(0, surplus - min(surplus + {per_minute} - messages) OVER (ORDER BY minute))
           AS backlog
    FROM sums ORDER BY 1
"""


def forecast(spark: SparkSession, tables: str, rate_per_s: int) -> DataFrame:
    """Return the messages of each minute, and how many of them the rate leaves for later."""
    for name in TABLES:
        spark.read.parquet(f"{tables}/{name}").createOrReplaceTempView(name)
    return spark.sql(QUERY.format(per_minute=rate_per_s * 60))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("tables", help="directory of `duemq reconcile export`")
    parser.add_argument("rate_per_s", type=int, help="messages that the brokers deliver per second")
    given = parser.parse_args()
    session = SparkSession.builder.getOrCreate()
    forecast(session, given.tables, given.rate_per_s).show(1_000, truncate=False)
