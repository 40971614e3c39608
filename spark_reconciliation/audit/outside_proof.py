"""Proof against the records of producers and consumers.

    verdicts --named_messages--> messages by topic and name
    sent                         --producer_proof--> outcome of each message that the producer sent
    received                     --consumer_proof--> outcome of each message that was delivered

An audit proves what the store has promised. These proofs also find messages that never reached the
store, and messages that consumers did not process. Several messages may have the same key: a name
has one outcome, about all its messages.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from spark_reconciliation.audit.rules import CLEAN, VERDICTS
from spark_reconciliation.engine import F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from spark_reconciliation.spark.outside_tables import OutsideRows

KEY_SEPARATOR: Final = " "
BEFORE_STORE: Final = "before_store"
CONSUMED: Final = "consumed"
NOT_YET: Final = "not_yet"
WITHOUT_DELAY: Final = "without_delay"
ACCEPTABLE: Final = frozenset({*CLEAN, BEFORE_STORE, CONSUMED, NOT_YET, WITHOUT_DELAY})
"""Outcomes that are not findings."""
TOPICS_MAX: Final = 1_000  # maximum topics by which records are selected while they are read
Lookup = Callable[[list[str]], "DataFrame"]
"""Returns topic and name of all records of some topics; of all without any."""


def named_messages(
    verdicts: DataFrame, records: DataFrame, units: DataFrame, *, by_key: bool
) -> DataFrame:
    """Return the scheduled messages with their names.

    Retention may have removed the first record of a message. Then a later record, or the delivery,
    names it, and the due time that the broker accepted is unknown, because it may have been moved.

    Args:
        verdicts: Result of `verdicts.audit`.
        records: store, phys_offset, unique_id, keys, due_ms of `messages`, of pending records, and
            of deliveries if retention has removed records.
        units: store, phys_offset, due_ms of `schedule`.
        by_key: Whether each key is a name, instead of the unique id.
    Returns:
        store, root, topic, name, store_ms, accepted_ms (due time that the broker accepted; null:
        unknown), due_ms, delivered_ms, verdict. A message without a readable record has no name.
    """
    named = records.select(
        "store", F.col("phys_offset").alias("naming"), names_of(by_key).alias("names")
    )
    accepted = records.select(
        "store",
        F.col("phys_offset").alias("root"),
        F.lit(True).alias("has_first"),
        F.col("due_ms").alias("record_ms"),
    )
    in_queue = units.select(
        "store", F.col("phys_offset").alias("root"), F.col("due_ms").alias("unit_ms")
    )
    rows = verdicts.withColumn("naming", F.coalesce("leaf", "delivered_phys"))
    rows = rows.join(named, ["store", "naming"], "left")
    rows = rows.join(accepted, ["store", "root"], "left")
    rows = rows.join(in_queue, ["store", "root"], "left")
    first_ms = F.coalesce("record_ms", "unit_ms", "due_ms")
    return rows.select(
        "store",
        "root",
        "topic",
        F.explode_outer("names").alias("name"),
        "store_ms",
        F.when(F.col("has_first"), first_ms).alias("accepted_ms"),
        "due_ms",
        "delivered_ms",
        "verdict",
    )


def names_of(by_key: bool) -> Column:
    """Return the names of a record, an array."""
    return F.split("keys", KEY_SEPARATOR) if by_key else F.array("unique_id")


def producer_proof(
    messages: DataFrame,
    sent: OutsideRows,
    lookup: Lookup,
    cancelled: DataFrame | None = None,
    *,
    tolerance_ms: int,
    oldest_ms: int | None,
    read_ms: int,
) -> DataFrame:
    """Return the outcome of each message of a producer's table; reads its topics at once.

    A message that the producer does not have is examined if its topic and due time are in the
    range of the table, and it was stored before the table was read.

    Args:
        messages: Result of `named_messages`.
        lookup: Records without a delay are searched here.
        cancelled: topic, name and unique_id of messages that were cancelled, also of removed ones.
        tolerance_ms: Maximum difference between promised and accepted time.
        oldest_ms: Store time of the oldest record if retention has removed others; else None.
        read_ms: Time at which the table was read.
    Returns:
        topic, name, sent and accepted (numbers of messages), promised_ms, accepted_ms,
        delivered_ms (the first of each), outcome: `never_accepted`, `accepted_without_delay`,
        `accepted_twice`, `accepted_with_other_time`, `unknown_to_producer`, or the audit's verdict.
    """
    times = F.array_sort(F.collect_set("time_ms")).alias("promised")
    promised = sent.frame.groupBy("topic", "name").agg(times)
    topics = sent.frame.select("topic").distinct()
    names = _few_names(topics)
    plain = lookup(names).distinct().withColumn("is_plain", F.lit(True))
    both = promised.join(_by_name(messages, read_ms), ["topic", "name"], "full")
    both = both.join(plain, ["topic", "name"], "left")
    cancelled_count = F.lit(0)
    if cancelled is not None:
        ids = F.countDistinct(F.coalesce("unique_id", F.lit(""))).alias("cancelled")
        markers = cancelled.groupBy("topic", "name").agg(ids)
        both = both.join(markers, ["topic", "name"], "left")
        cancelled_count = F.coalesce("cancelled", F.lit(0))
    count = {"promised": _length(F.col("promised"))}
    count["accepted"] = F.coalesce("messages", F.lit(0))
    earlier = messages.where(F.col("store_ms") < read_ms)
    strangers = _of_topics(_unnamed(earlier, promised), topics, names).select("topic", "name")
    strangers = strangers.distinct().withColumn("is_stranger", F.lit(True))
    both = both.join(strangers, ["topic", "name"], "left")
    in_range = F.col("is_stranger").isNotNull()
    accepted_ms = F.try_element_at("accepted", F.lit(1))
    in_range &= accepted_ms.between(F.lit(sent.first_ms), F.lit(sent.last_ms))
    oldest = F.lit(oldest_ms).cast("bigint")
    removed = _length(F.filter("promised", lambda time_ms: time_ms < oldest))
    missing, none = count["promised"] - count["accepted"], count["accepted"] == 0
    is_live = (missing < 0) & (F.col("live") > 0)  # a transfer cancels the message at its source
    times = F.when(is_live, F.col("live_times")).otherwise(F.col("accepted"))
    differs = _length(times) == count["promised"]  # no accepted time is unknown
    differences = F.zip_with("promised", times, lambda a, b: F.abs(a - b))
    differs &= F.array_max(differences) > tolerance_ms
    outcome = (
        F.when(count["promised"] == 0, "unknown_to_producer")
        .when(none & (missing <= removed), BEFORE_STORE)
        .when(none & (missing <= removed + cancelled_count), "cancelled")
        .when(none & F.col("is_plain"), "accepted_without_delay")
        .when(missing > removed, "never_accepted")
        .when(F.col("live") > count["promised"], "accepted_twice")
        .when(differs, "accepted_with_other_time")
        .otherwise(F.when(is_live, F.col("live_verdict")).otherwise(F.col("verdict")))
    )
    return both.where((count["promised"] > 0) | in_range).select(
        "topic",
        "name",
        count["promised"].alias("sent"),
        count["accepted"].alias("accepted"),
        F.try_element_at("promised", F.lit(1)).alias("promised_ms"),
        accepted_ms.alias("accepted_ms"),
        "delivered_ms",
        outcome.alias("outcome"),
    )


def _unnamed(messages: DataFrame, names: DataFrame) -> DataFrame:
    """Return the messages of which no name is in a table."""
    named = messages.join(names, ["topic", "name"]).select("store", "root").distinct()
    return messages.join(named, ["store", "root"], "left_anti")


def consumer_proof(
    messages: DataFrame,
    received: OutsideRows,
    lookup: Lookup,
    sent: OutsideRows | None,
    *,
    oldest_ms: int | None,
) -> DataFrame:
    """Return the outcome of each message that was delivered or that a consumer received.

    Messages that were delivered after the newest row of the table may still be on their way. Rows
    from before the oldest record may be of messages that retention has removed.

    Args:
        messages: Result of `named_messages`.
        lookup: Records without a delay are searched here.
        sent: Promised times, for the lateness; None: the due times of the store.
        oldest_ms: Store time of the oldest record if retention has removed others; else None.
    Returns:
        topic, name, delivered and received (numbers), due_ms, received_ms (the first of each),
        late_ms (from the promised time to the receipt), outcome: `not_consumed`, `consumed_twice`,
        `consumed_early`, `unknown_to_broker`, `before_store`, `without_delay`, `consumed` or
        `not_yet`.
    """
    oldest = F.lit(received.first_ms if oldest_ms is None else oldest_ms)
    receipts = _receipts(received, oldest)
    delivered = _by_name(messages.where(F.col("delivered_ms").isNotNull()), received.last_ms)
    topics = received.frame.select("topic").distinct()
    names = _few_names(topics)
    delivered = _of_topics(delivered, topics, names)
    both = delivered.join(receipts, ["topic", "name"], "full")
    unknown = both.where(F.col("messages").isNull()).select("topic", "name")
    plain = lookup(names).join(unknown, ["topic", "name"], "left_semi").distinct()
    both = both.join(plain.withColumn("is_plain", F.lit(True)), ["topic", "name"], "left")
    promised_ms = F.col("due_ms")
    if sent is not None:
        promises = sent.frame.groupBy("topic", "name").agg(F.min("time_ms").alias("promised_ms"))
        both = both.join(promises, ["topic", "name"], "left")
        promised_ms = F.coalesce("promised_ms", "due_ms")
    delivered_count = F.coalesce("messages", F.lit(0))
    is_removed = (F.col("later") >= delivered_count) & (F.col("delivered_ms") >= oldest)
    received_count = F.coalesce(F.when(is_removed, F.col("later")), "received", F.lit(0))
    received_ms = F.when(is_removed, F.col("later_ms")).otherwise(F.col("received_ms"))
    outcome = (
        F.when((delivered_count == 0) & F.col("is_plain"), WITHOUT_DELAY)
        .when((delivered_count == 0) & (F.col("later") == 0), BEFORE_STORE)
        .when(delivered_count == 0, "unknown_to_broker")
        .when(received_ms < F.col("due_ms"), "consumed_early")
        .when(received_count < F.col("delivered_until"), "not_consumed")
        .when(received_count < delivered_count, NOT_YET)
        .when(received_count > delivered_count, "consumed_twice")
        .otherwise(CONSUMED)
    )
    return both.select(
        "topic",
        "name",
        delivered_count.alias("delivered"),
        received_count.alias("received"),
        "due_ms",
        received_ms.alias("received_ms"),
        (received_ms - promised_ms).alias("late_ms"),
        outcome.alias("outcome"),
    )


def _receipts(received: OutsideRows, oldest: Column) -> DataFrame:
    """Return number and first time of the rows of each name, and of those since a time."""
    is_later = F.col("time_ms") >= oldest
    return received.frame.groupBy("topic", "name").agg(
        F.count("*").alias("received"),
        F.min("time_ms").alias("received_ms"),
        F.count_if(is_later).alias("later"),
        F.min(F.when(is_later, F.col("time_ms"))).alias("later_ms"),
    )


def _few_names(topics: DataFrame) -> list[str]:
    """Return the names of topics; none if they are more than TOPICS_MAX. An action."""
    names = [row["topic"] for row in topics.limit(TOPICS_MAX + 1).collect()]
    return names if len(names) <= TOPICS_MAX else []


def _of_topics(rows: DataFrame, topics: DataFrame, names: list[str]) -> DataFrame:
    """Return the rows of topics. A join by topic is slow if one of them has most of the rows."""
    return rows.where(F.col("topic").isin(*names)) if names else rows.join(topics, "topic")


def _by_name(messages: DataFrame, until_ms: int | None) -> DataFrame:
    """Return number of messages, of those delivered until a time, known accepted times, first due
    and delivery time, and gravest verdict of each name. A message that has a key twice is one.

    `live`, `live_times`, `live_verdict`: of the messages that were not cancelled.
    """
    rows = messages.where(F.col("name").isNotNull() & F.col("topic").isNotNull())
    grave, is_live = _rank(F.col("verdict")), F.col("verdict") != "cancelled"
    single = rows.groupBy("topic", "name", "store", "root").agg(
        F.min("accepted_ms").alias("accepted_ms"),
        F.min("due_ms").alias("due_ms"),
        F.min("delivered_ms").alias("delivered_ms"),
        F.min_by("verdict", grave).alias("verdict"),
    )
    return single.groupBy("topic", "name").agg(
        F.count("*").alias("messages"),
        F.array_sort(F.collect_list("accepted_ms")).alias("accepted"),
        F.min("due_ms").alias("due_ms"),
        F.min("delivered_ms").alias("delivered_ms"),
        F.count_if(F.col("delivered_ms") <= F.lit(until_ms)).alias("delivered_until"),
        F.min_by("verdict", grave).alias("verdict"),
        F.count_if(is_live).alias("live"),
        F.array_sort(F.collect_list(F.when(is_live, F.col("accepted_ms")))).alias("live_times"),
        F.min_by("verdict", F.when(is_live, grave)).alias("live_verdict"),
    )


def _length(array: Column) -> Column:
    """Return the length of an array, 0 without one; outside of ANSI mode, Spark's is -1."""
    return F.when(array.isNotNull(), F.size(array)).otherwise(0)


def _rank(verdict: Column) -> Column:
    return F.array_position(F.array(*map(F.lit, VERDICTS)), verdict)
