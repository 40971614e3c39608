"""Campaigns and how they arrived: `spark-submit campaigns.py /data/tables 60 spring-sale`.

The messages of a campaign have its name among their keys. The second argument is the number of
seconds after which a message has missed its time. Without names, every key is a campaign.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

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
    ), of_campaigns AS (
        SELECT *, explode(array_distinct(split(trim(keys), ' +'))) AS campaign
        FROM promises WHERE keys IS NOT NULL
    ), until AS (
        SELECT broker, max(ms) AS until_ms FROM (
            SELECT broker, accepted_ms AS ms FROM scheduled
            UNION ALL SELECT broker, delivered_ms FROM delivered
        ) GROUP BY broker
    )
    SELECT campaign,
           count(*) AS messages,
           count_if(times IS NOT NULL) AS delivered,
           count_if(times > 1) AS delivered_twice,
           count_if(times IS NULL AND is_cancelled) AS cancelled,
           count_if(late_ms > {limit_ms}) AS late,
           count_if(times IS NULL AND is_cancelled IS NULL
                    AND due_ms + {limit_ms} < until_ms) AS missing,
           timestamp_millis(max(due_ms)) AS last_due,
           timestamp_millis(max(delivered_ms)) AS last_delivered
    FROM of_campaigns JOIN until USING (broker)
    LEFT JOIN arrived USING (broker, scheduled_offset)
    LEFT JOIN cancelled USING (broker, scheduled_offset)
    GROUP BY campaign ORDER BY missing DESC, late DESC, messages DESC, campaign
"""


def campaigns(
    spark: SparkSession, tables: str, limit_ms: int, names: Sequence[str] = ()
) -> DataFrame:
    """Return one row per campaign, those that missed their time first; all without names."""
    for name in TABLES:
        spark.read.parquet(f"{tables}/{name}").createOrReplaceTempView(name)
    rows = spark.sql(QUERY.format(limit_ms=limit_ms))
    return rows.where(rows.campaign.isin(*names)) if names else rows


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("tables", help="directory of `duemq reconcile export`")
    parser.add_argument("limit_s", type=int, help="seconds after which a message is late")
    parser.add_argument("names", nargs="*", help="campaigns; default: every key")
    given = parser.parse_args()
    session = SparkSession.builder.getOrCreate()
    rows = campaigns(session, given.tables, given.limit_s * 1_000, given.names)
    rows.show(1_000, truncate=False)
