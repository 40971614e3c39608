"""Jobs on verdicts and tables: DataFrame in, DataFrame out, for a notebook or a schedule.

    verdicts --forecast--> load --capacity--> backlog at a broker's rate        --by_day--> days
    verdicts --lateness--> history --trend--> better or worse                   --totals, worst
    verdicts, messages --repair--> messages to send again
    schedule, cursors, messages --backfill_plan--> messages that a migration would move

`migration_proof.migration_proof` is the job about one migration. All jobs run unchanged on one
machine, on a cluster and behind Spark Connect: without RDDs, and without Python per row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from spark_reconciliation.audit.keyed_events import origin
from spark_reconciliation.audit.rules import CLEAN, EXCUSED
from spark_reconciliation.engine import F, Window
from spark_reconciliation.scan.ownership_tables import owned_by_timers, read_journals
from timer_store.layout import UNIT_BYTES

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

SECOND_MS: Final = 1_000
MINUTE_MS: Final = 60_000
HOUR_MS: Final = 3_600_000
DAY_MS: Final = 86_400_000
BUCKETS_MS: Final = (SECOND_MS, 10_000, MINUTE_MS, 10 * MINUTE_MS, HOUR_MS, 6 * HOUR_MS, DAY_MS)
CURVE_POINTS: Final = 200
TO_REPAIR: Final = ("lost", "quarantined")
STEADY_MS_PER_DAY: Final = 1.0
WORST_MAX: Final = 20
TRANSACTION, COMMITTED = 0x0C, 0x08
PLAN_COLUMNS: Final = (
    "store",
    "phys_offset",
    "topic",
    "queue_offset",
    "sys_flag",
    "prepared_offset",
    "damage",
    "body",
)
"""Columns of `messages` that `backfill_plan` reads."""


def forecast(verdicts: DataFrame, *, bucket_ms: int = MINUTE_MS) -> DataFrame:
    """Return the number of pending messages that become due in each interval, in order.

    Args:
        verdicts: Result of `verdicts.audit`.
        bucket_ms: Length of an interval.
    Returns:
        from_ms, until_ms, topic, messages, per_second (mean load).
    """
    pending = verdicts.where(F.col("verdict") == "pending")
    groups = pending.groupBy(_bucket("due_ms", bucket_ms).alias("from_ms"), "topic")
    load = F.col("messages") * SECOND_MS / F.lit(bucket_ms)
    counted = groups.agg(F.count("*").alias("messages")).withColumns(
        {"per_second": load, "until_ms": F.col("from_ms") + bucket_ms}
    )
    names = ("from_ms", "until_ms", "topic", "messages", "per_second")
    return counted.select(*names).orderBy("from_ms", "topic")


def capacity(load: DataFrame, *, rate_per_s: int | None = None) -> DataFrame:
    """Return the backlog of a broker with a maximum delivery rate under a load.

    The backlog at the end of an interval is the number of messages due since the broker was last
    idle, less those that it delivered since then: with S(t) = number due until t - rate * t, the
    backlog is S(t) - min S before t.

    Args:
        load: Result of `forecast`.
        rate_per_s: Maximum deliveries per second; None: the mean of the heaviest interval, which
            is the capacity that the load needs.
    Returns:
        from_ms, until_ms, messages (all topics), per_second, capacity_per_s, busy (share of the
        capacity), queue (backlog at the end), behind_ms (lateness of the last message).
    Raises:
        ValueError: The rate is not above 0.
    """
    if rate_per_s is not None and rate_per_s <= 0:
        raise ValueError(f"rate_per_s={rate_per_s}: it must be above 0")
    pieces = load.groupBy("from_ms", "until_ms").agg(
        F.sum("messages").alias("messages"), F.sum("per_second").alias("per_second")
    )
    whole = Window.partitionBy(F.lit(0))  # Spark warns of a window without a partition
    until = whole.orderBy("from_ms")
    rate = F.max("per_second").over(whole) if rate_per_s is None else F.lit(float(rate_per_s))
    rows = pieces.withColumns({"capacity_per_s": rate, "due": F.sum("messages").over(until)})
    per_ms = F.col("capacity_per_s") / SECOND_MS
    start_ms = F.min("from_ms").over(whole)
    rows = rows.withColumn("start_ms", start_ms)
    before = F.col("due") - F.col("messages") - per_ms * (F.col("from_ms") - F.col("start_ms"))
    after = F.col("due") - per_ms * (F.col("until_ms") - F.col("start_ms"))
    rows = rows.withColumns({"before": before, "after": after})
    queue = F.greatest(F.col("after") - F.min("before").over(until), F.lit(0.0))
    rows = rows.withColumn("queue", F.ceil(F.round(queue, 6)))
    return rows.select(
        "from_ms",
        "until_ms",
        "messages",
        "per_second",
        "capacity_per_s",
        (F.col("per_second") / F.col("capacity_per_s")).alias("busy"),
        "queue",
        F.ceil(F.col("queue") / per_ms).alias("behind_ms"),
    ).orderBy("from_ms")


def by_day(load: DataFrame) -> DataFrame:
    """Return the number of due messages of each day (UTC), with its heaviest interval.

    Args:
        load: Result of `forecast`.
    Returns:
        day, messages, peak_at_ms (start of the heaviest interval), peak_per_s.
    """
    pieces = load.groupBy("from_ms").agg(
        F.sum("messages").alias("messages"), F.sum("per_second").alias("per_second")
    )
    heaviest = F.max(F.struct("per_second", (-F.col("from_ms")).alias("first"))).alias("peak")
    groups = pieces.groupBy(_day("from_ms").alias("day"))
    days = groups.agg(F.sum("messages").alias("messages"), heaviest)
    peak_at_ms, peak = (-F.col("peak.first")).alias("peak_at_ms"), F.col("peak.per_second")
    return days.select("day", "messages", peak_at_ms, peak.alias("peak_per_s")).orderBy("day")


def lateness(verdicts: DataFrame, *, bucket_ms: int = HOUR_MS) -> DataFrame:
    """Return the lateness of deliveries in each interval, in order.

    Returns:
        from_ms, level (null: timers), topic, messages, p50_ms, p99_ms, max_ms.
    """
    from_ms = _bucket("delivered_ms", bucket_ms).alias("from_ms")
    intervals = _sent(verdicts).groupBy(from_ms, "level", "topic").agg(*_times())
    return intervals.orderBy("from_ms", "level", "topic")


def totals(verdicts: DataFrame) -> DataFrame:
    """Return counts, findings and lateness of each level and topic.

    Returns:
        level (null: timers), topic, messages, delivered, findings, p50_ms, p90_ms, p99_ms,
        p999_ms, max_ms.
    """
    late = F.col("late_ms")
    shares = (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p999", 0.999))
    rows = verdicts.groupBy("level", "topic").agg(
        F.count("*").alias("messages"),
        F.count(late).alias("delivered"),
        F.count(F.when(~F.col("verdict").isin(*CLEAN), 1)).alias("findings"),
        *(F.percentile_approx(late, share).alias(f"{name}_ms") for name, share in shares),
        F.max(late).alias("max_ms"),
    )
    return rows.orderBy("level", "topic")


def trend(history: DataFrame) -> DataFrame:
    """Return the trend of lateness: the slope of a straight line through the p99s.

    Args:
        history: Result of `lateness`.
    Returns:
        level, topic, pieces, messages, first_p99_ms, last_p99_ms, worst_p99_ms, p99_ms_per_day
        (null: less than an hour of history), trend: `better`, `worse` or `steady`.
    """
    span_ms = F.max("from_ms") - F.min("from_ms")
    slope = F.when(span_ms >= HOUR_MS, F.regr_slope("p99_ms", "from_ms") * DAY_MS)
    rows = history.groupBy("level", "topic").agg(
        F.count("*").alias("pieces"),
        F.sum("messages").alias("messages"),
        F.min_by("p99_ms", "from_ms").alias("first_p99_ms"),
        F.max_by("p99_ms", "from_ms").alias("last_p99_ms"),
        F.max("p99_ms").alias("worst_p99_ms"),
        slope.alias("p99_ms_per_day"),
    )
    direction = (
        F.when(F.col("p99_ms_per_day") > STEADY_MS_PER_DAY, "worse")
        .when(F.col("p99_ms_per_day") < -STEADY_MS_PER_DAY, "better")
        .otherwise("steady")
    )
    return rows.withColumn("trend", direction).orderBy("level", "topic")


def worst(verdicts: DataFrame, *, count_max: int = WORST_MAX) -> DataFrame:
    """Return the latest deliveries, in descending order of lateness.

    Returns:
        late_ms, store, root, topic, level, unique_id, due_ms, delivered_ms, verdict.
    """
    names = ("store", "root", "topic", "level", "unique_id", "due_ms", "delivered_ms", "verdict")
    deliveries = _sent(verdicts).where(F.col("late_ms") > 0)
    order = (F.col("late_ms").desc(), F.col("store"), F.col("root"))
    return deliveries.select("late_ms", *names).orderBy(*order).limit(count_max)


def repair(verdicts: DataFrame, messages: DataFrame | None = None) -> DataFrame:
    """Return messages that should have been delivered and were not.

    Args:
        messages: store, phys_offset, property_text, body, flag and sys_flag, to send them again;
            messages with an unreadable record are omitted. Without it, only positions are returned.
    Returns:
        store, phys_offset (of the newest record of each), topic, queue_id, unique_id, due_ms, why,
        and of `messages`: property_text, body, flag, sys_flag.
    """
    # messages that are `lost` only because of a clock step will be delivered
    excused = F.coalesce("why", F.lit("")).isin(*EXCUSED)
    undelivered = verdicts.where(F.col("verdict").isin(*TO_REPAIR) & F.col("leaf").isNotNull())
    undelivered = undelivered.where(~excused)
    position = F.col("leaf").alias("phys_offset")
    rows = undelivered.select("store", position, "topic", "queue_id", "unique_id", "due_ms", "why")
    if messages is None:
        return rows
    texts = messages.select("store", "phys_offset", "property_text", "body", "flag", "sys_flag")
    return rows.join(texts, ["store", "phys_offset"]).orderBy("store", "phys_offset")


def backfill_plan(
    schedule: DataFrame, cursors: DataFrame, messages: DataFrame, *, as_of_ms: int
) -> DataFrame:
    """Return the messages that a migration would move, as `duemq migrate plan` counts them.

    A unit is pending if the cursor of its level has not passed it, the timers do not own it, and no
    record in the log has its record as origin: no delivery, copy or decision. An action: the
    ownership journal is read at once.

    Args:
        schedule, cursors: Tables of these names.
        messages: store, phys_offset, topic, queue_offset, sys_flag, prepared_offset, damage, body.
        as_of_ms: Messages due until then are overdue.
    Returns:
        store, level, pending, pending_bytes, first_due_ms, last_due_ms, overdue, unit_bytes: of
        levels with pending units.
    """
    positions = cursors.where("kind = 'level'").select(
        "store", (F.col("queue_id") + 1).alias("level"), F.col("value").alias("cursor")
    )
    rows = schedule.join(F.broadcast(positions), ["store", "level"], "left")
    rows = rows.where(F.col("queue_offset") >= F.coalesce("cursor", F.lit(0)))
    ended = messages.where(_valid_records() & (F.col("prepared_offset") < 0))
    ended = ended.select("store", origin().alias("phys_offset")).distinct()
    rows = rows.join(ended, ["store", "phys_offset"], "left_anti")
    owned = owned_by_timers(schedule, read_journals(messages))
    rows = rows.join(owned, ["store", "level", "queue_offset"], "left_anti")
    overdue = F.count(F.when(F.col("due_ms") <= as_of_ms, 1))
    levels = rows.groupBy("store", "level").agg(
        F.count("*").alias("pending"),
        F.sum("record_size").alias("pending_bytes"),
        F.min("due_ms").alias("first_due_ms"),
        F.max("due_ms").alias("last_due_ms"),
        overdue.alias("overdue"),
    )
    size = F.col("pending") * UNIT_BYTES
    return levels.withColumn("unit_bytes", size).orderBy("store", "level")


def bucket_of(verdicts: DataFrame) -> int:
    """Return the interval in ms that divides all deliveries into CURVE_POINTS points."""
    ends = _sent(verdicts).agg(
        F.min("delivered_ms").alias("first"), F.max("delivered_ms").alias("last")
    )
    (row,) = ends.collect()
    span_ms = (row["last"] or 0) - (row["first"] or 0)
    return next((ms for ms in BUCKETS_MS if span_ms <= ms * CURVE_POINTS), DAY_MS)


def _sent(verdicts: DataFrame) -> DataFrame:
    return verdicts.where(F.col("late_ms").isNotNull())


def _times() -> list[Column]:
    return [
        F.count("*").alias("messages"),
        F.percentile_approx("late_ms", 0.5).alias("p50_ms"),
        F.percentile_approx("late_ms", 0.99).alias("p99_ms"),
        F.max("late_ms").alias("max_ms"),
    ]


def _valid_records() -> Column:
    """Return the condition for valid records: undamaged, not half and not rolled back."""
    sound = F.col("damage").isNull() | (F.col("damage") == "body-crc")
    kind = F.col("sys_flag").bitwiseAND(TRANSACTION)
    return sound & kind.isin(0, COMMITTED)


def _bucket(column: str, bucket_ms: int) -> Column:
    return F.col(column) - F.pmod(F.col(column), F.lit(bucket_ms))


def _day(column: str) -> Column:
    return F.date_format(F.timestamp_millis(column), "yyyy-MM-dd")
