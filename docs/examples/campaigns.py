"""Campaigns and how they arrived: `spark-submit campaigns.py /data/tables 60`.

The messages of a campaign have its name as their key. The second argument is the number of seconds
after which a message has missed its time.
"""

from __future__ import annotations

import sys

from pyspark.sql import DataFrame, SparkSession

TABLES = ("scheduled", "delivered", "decisions")
QUERY = """
    WITH arrived AS (
        SELECT broker, scheduled_offset, count(*) AS times,
               min(delivered_ms) AS delivered_ms, max(late_ms) AS late_ms
        FROM delivered GROUP BY broker, scheduled_offset
    ), cancelled AS (
        SELECT DISTINCT broker, scheduled_offset, true AS is_cancelled
        FROM decisions WHERE decision = 'cancelled'
    ), moved AS (
        SELECT broker, scheduled_offset, max_by(due_ms, log_offset) AS due_ms
        FROM decisions WHERE decision = 'moved' GROUP BY broker, scheduled_offset
    ), promises AS (
        SELECT s.broker, s.log_offset AS scheduled_offset, s.keys,
               coalesce(m.due_ms, s.due_ms) AS due_ms
        FROM scheduled s LEFT JOIN moved m
        ON m.broker = s.broker AND m.scheduled_offset = s.log_offset
    ), until AS (
        SELECT greatest((SELECT max(accepted_ms) FROM scheduled),
                        (SELECT max(delivered_ms) FROM delivered)) AS ms
    )
    SELECT keys AS campaign,
           count(*) AS messages,
           count_if(times IS NOT NULL) AS delivered,
           count_if(times > 1) AS delivered_twice,
           count_if(times IS NULL AND is_cancelled) AS cancelled,
           count_if(late_ms > {limit_ms}) AS late,
           count_if(times IS NULL AND is_cancelled IS NULL
                    AND due_ms + {limit_ms} < until.ms) AS missing,
           timestamp_millis(max(due_ms)) AS last_due,
           timestamp_millis(max(delivered_ms)) AS last_delivered
    FROM promises CROSS JOIN until
    LEFT JOIN arrived USING (broker, scheduled_offset)
    LEFT JOIN cancelled USING (broker, scheduled_offset)
    WHERE keys IS NOT NULL
    GROUP BY keys ORDER BY missing DESC, late DESC, campaign
"""


def campaigns(spark: SparkSession, tables: str, limit_ms: int) -> DataFrame:
    """Return one row per campaign, those that missed their time first."""
    for name in TABLES:
        spark.read.parquet(f"{tables}/{name}").createOrReplaceTempView(name)
    return spark.sql(QUERY.format(limit_ms=limit_ms))


if __name__ == "__main__":
    session, limit_s = SparkSession.builder.getOrCreate(), int(sys.argv[2])
    campaigns(session, sys.argv[1], limit_s * 1_000).show(1_000, truncate=False)
