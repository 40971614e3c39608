"""What became of every scheduled message: one row each, with a verdict and why.

    held         a record that waits: in a level's queue, or in the timers'
    copy         a held record made of another one: moved, rolled, copied by compaction
    delivery, quarantine, cancel     what ends it; each names the record it was made of

    root --copy--> hop --copy--> leaf --delivery--> topic          one message, one verdict

All rows are given the root that they belong to; then one aggregation by root sees the whole life of
a message. Ours name their origin (docs/decisions/0002, 0014). Records of Apache's brokers do not:
`identity` gives them an origin first, by unique id, target, birth and time.

The promise is that of the leaf: the time it waits for, the topic and queue it names. A marker that
comes behind the record that decides is there for Apache's brokers and cancels nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from reconciliation.chains import Roots, find_roots
from reconciliation.identity import with_origins

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
DECISION_TOPIC: Final = "DUEMQ_DECISIONS"
QUARANTINE_TOPIC: Final = "DUEMQ_QUARANTINE"
VERDICTS: Final = (
    "corrupt", "moved_twice", "duplicated", "cancelled_but_fired", "misrouted", "early", "late",
    "lost", "unexpected", "quarantined", "cancelled", "pending", "moved", "ok",
)  # fmt: skip
CLEAN: Final = frozenset({"ok", "pending", "cancelled", "moved"})
"""Verdicts that keep a promise; the others are findings."""
COLUMNS: Final = (
    "store", "phys_offset", "topic", "queue_id", "queue_offset", "store_ms", "born_ms", "sys_flag",
    "prepared_offset", "body_crc", "body_len", "damage", "unique_id", "real_topic", "real_queue_id",
    "level", "due_ms", "out_ms", "rolls", "cancels", "properties_hash",
)  # fmt: skip
"""The columns of `messages` that an audit reads."""
IGNORED: Final = "ignored"
HASHES_BITS: Final = 31  # a tags code of so few bits is a tag's hash, no time
TRANSACTION, COMMITTED = 0x0C, 0x08
DEFAULT_LEVELS_MS: Final = tuple(
    1_000 * seconds
    for seconds in (
        *(
            1,
            5,
            10,
            30,
            60,
            120,
            180,
            240,
            300,
            360,
            420,
            480,
            540,
            600,
            1_200,
            1_800,
            3_600,
            7_200,
        ),
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditConfig:
    """What an audit takes for granted.

    Attributes:
        late_ms: a delivery may come so much later than its due time and is ok.
        as_of_ms: what is due until then should be delivered; None: the store's newest record.
        levels_ms: delays of levels 1, 2, ...: where a queue does not tell when a message is due.
    """

    late_ms: int = 2_000
    as_of_ms: int | None = None
    levels_ms: tuple[int, ...] = DEFAULT_LEVELS_MS


def audit(
    messages: DataFrame, queues: DataFrame, cursors: DataFrame, config: AuditConfig | None = None
) -> DataFrame:
    """Return a row for each scheduled message, and for each delivery of none.

    Args:
        messages: `COLUMNS` of that table, of one store or many; read several times: persist it.
        queues: `consume_queue`; cursors: that table, of the same stores.
    Returns:
        store, root, leaf (log offsets), topic, queue_id, unique_id, level, store_ms, due_ms,
        delivered_phys, delivered_ms, late_ms, hops, deliveries, verdict, why.
    """
    config = config or AuditConfig()
    facts = classified(messages)
    rows = with_origins(facts)
    roots = find_roots(rows)
    events = _keyed(rows, _units(queues, facts), roots)
    lives = _lives(events)
    stores = _stores(messages, cursors, config)
    return _judged(lives, stores, config)


# -- what each record is -------------------------------------------------------------------------


def classified(messages: DataFrame) -> DataFrame:
    """Return the records that matter, with `kind` and `origin` (a log offset, null: none)."""
    plain = (F.col("sys_flag").bitwiseAND(TRANSACTION)).isin(0, COMMITTED)
    sound = F.col("damage").isNull() | (F.col("damage") == "body-crc")
    timer = F.col("topic") == TIMER_TOPIC
    origin = F.when(F.col("prepared_offset") < 0, -F.col("prepared_offset") - 1)
    looks_delivered = F.col("real_topic").isNotNull() & (
        F.col("level").isNotNull() | F.col("out_ms").isNotNull()
    )
    kind = (
        F.when(timer & F.col("cancels").isNotNull(), "cancel")
        .when(timer | (F.col("topic") == SCHEDULE_TOPIC), "held")
        .when((F.col("topic") == DECISION_TOPIC) & origin.isNotNull(), "cancel")
        .when((F.col("topic") == QUARANTINE_TOPIC) & origin.isNotNull(), "quarantine")
        .when(origin.isNotNull(), "delivery")
        .when(looks_delivered, "candidate")
    )
    found = messages.where(plain & sound).withColumns({"origin": origin, "kind": kind})
    return found.where(F.col("kind").isNotNull())


# -- one key for a whole life --------------------------------------------------------------------


def _units(queues: DataFrame, facts: DataFrame) -> DataFrame:
    """Return the units that should have a held record, with what they promise in `unit_ms`."""
    markers = facts.where((F.col("kind") == "cancel") & (F.col("topic") == TIMER_TOPIC))
    held = queues.where(F.col("topic").isin(SCHEDULE_TOPIC, TIMER_TOPIC))
    held = held.join(markers.select("store", "phys_offset"), ["store", "phys_offset"], "left_anti")
    promise = F.when(F.col("topic") == SCHEDULE_TOPIC, F.col("tags_code"))
    return held.select(
        "store",
        "phys_offset",
        F.lit("unit").alias("kind"),
        promise.alias("unit_ms"),
        F.col("phys_offset").alias("key"),
    )


def _keyed(rows: DataFrame, units: DataFrame, roots: Roots | None) -> DataFrame:
    """Return all events with the `root` they belong to; units of queues are events, too."""
    events = rows.where(F.col("kind") != "candidate").withColumn(
        "key", F.when(F.col("kind") == "held", F.col("phys_offset")).otherwise(F.col("origin"))
    )
    events = events.where(F.col("key").isNotNull())
    events = events.unionByName(units, allowMissingColumns=True)
    if roots is None:
        nothing = F.lit(None).cast("bigint")
        return events.withColumns({"root": F.col("key"), "copies": F.lit(0), "first_copy": nothing})
    return (
        events.join(roots.frame, ["store", "key"], "left")
        .withColumn("root", F.coalesce("root", "key"))
        .withColumn("copies", F.coalesce("copies", F.lit(0)))
    )


def _lives(events: DataFrame) -> DataFrame:
    """Return one row for each root: its first and last record, its deliveries, what ended it."""
    is_held, is_delivery = F.col("kind") == "held", F.col("kind") == "delivery"
    parked, at = F.col("kind") == "quarantine", F.col("phys_offset")
    cancels = (F.col("kind") == "cancel") & (
        F.col("first_copy").isNull() | (at < F.col("first_copy"))
    )
    marks = (F.col("kind") == "cancel") & (F.col("prepared_offset") < 0)
    moved_on = F.col("copies") > 0
    moves = is_held & (at != F.col("root")) & F.col("rolls").isNull()
    held = F.struct(
        at.alias("at"), "topic", "queue_id", "queue_offset", "store_ms", "real_topic", "level",
        "real_queue_id", "unique_id", "due_ms", "out_ms", "body_crc", "body_len",
        "properties_hash", "damage",
    )  # fmt: skip
    sent = F.struct(
        at.alias("at"), "store_ms", "topic", "queue_id", "body_crc", "body_len",
        "properties_hash", "damage",
    )  # fmt: skip
    return events.groupBy("store", "root").agg(
        F.min(F.when(is_held, held)).alias("first"),
        F.max(F.when(is_held, held)).alias("leaf"),
        F.count(F.when(is_held, 1)).alias("hops"),
        F.count(F.when(moves, 1)).alias("moves"),
        F.max("unit_ms").alias("unit_ms"),
        F.max(F.when(F.col("kind") == "unit", at)).alias("unit_at"),
        F.min(F.when(is_delivery, sent)).alias("sent"),
        F.count(F.when(is_delivery, 1)).alias("deliveries"),
        F.count(F.when(parked, 1)).alias("parked"),
        F.min(F.when(is_delivery | parked, at)).alias("ended_at"),
        F.min(F.when(cancels, at)).alias("cancelled_at"),
        F.max(F.when(marks & (F.col("topic") == TIMER_TOPIC), at)).alias("marked_at"),
        F.max(F.when(is_held, F.col("copies"))).alias("copies"),
        F.count(F.when((is_delivery | parked) & moved_on, 1)).alias("ended_old"),
    )


def _stores(messages: DataFrame, cursors: DataFrame, config: AuditConfig) -> DataFrame:
    """Return for each store where its log begins, until when it lived, and its cursors."""
    newest = F.max("store_ms") if config.as_of_ms is None else F.lit(config.as_of_ms)
    spans = messages.groupBy("store").agg(
        F.min("phys_offset").alias("log_min"), newest.alias("as_of_ms")
    )
    is_level, is_read = F.col("kind") == "level", F.col("name") == "read_ms"
    places = cursors.groupBy("store").agg(
        F.map_from_entries(F.collect_list(F.when(is_level, F.struct("queue_id", "value")))).alias(
            "level_cursors"
        ),
        F.max(F.when((F.col("kind") == "timer") & is_read, F.col("value"))).alias("read_ms"),
    )
    return spans.join(places, "store", "left")


# -- the verdict --------------------------------------------------------------------------------


def _judged(lives: DataFrame, stores: DataFrame, config: AuditConfig) -> DataFrame:
    found = lives.join(F.broadcast(stores), "store", "left")
    found = found.where(F.col("root") >= F.col("log_min"))  # retention took what came before
    delays = F.array(*(F.lit(delay) for delay in (0, *config.levels_ms)))
    level = F.least(F.col("leaf.level"), F.lit(len(config.levels_ms)))
    by_table = F.col("leaf.store_ms") + F.element_at(delays, (level + 1).cast("int"))
    is_level = F.col("leaf.topic") == SCHEDULE_TOPIC
    is_time = F.abs(F.col("unit_ms")) >= 1 << HASHES_BITS
    own_ms = F.when(F.col("leaf.out_ms").isNull(), F.col("leaf.due_ms"))
    due_ms = F.when(
        is_level, F.coalesce(F.when(is_time, F.col("unit_ms")), own_ms, by_table)
    ).otherwise(F.col("leaf.due_ms"))
    in_map = F.coalesce(F.col("level_cursors")[F.col("leaf.queue_id")], F.lit(0))
    cursor = F.when(F.size("level_cursors") > 0, in_map)
    behind = (due_ms <= F.col("as_of_ms")) & (F.col("leaf.queue_offset") < cursor)
    passed = F.when(is_level, behind).otherwise(F.col("leaf.out_ms") < F.col("read_ms"))
    found = found.withColumns(
        {
            "due_ms": due_ms,
            "passed": passed,
            "cancelled": F.col("cancelled_at").isNotNull()
            & (F.col("ended_at").isNull() | (F.col("cancelled_at") < F.col("ended_at"))),
        }
    )
    found = found.withColumn("late_ms", F.col("sent.store_ms") - F.col("due_ms"))
    rules = _rules(config)
    verdict, why = F.lit("ok"), F.lit("")
    for name, holds, text in reversed(rules):
        verdict = F.when(holds, F.lit(name)).otherwise(verdict)
        why = F.when(holds, F.lit(text)).otherwise(why)
    found = found.withColumns({"verdict": verdict, "why": why})
    return found.where(F.col("verdict") != IGNORED).select(
        "store",
        "root",
        F.col("leaf.at").alias("leaf"),
        F.coalesce("leaf.real_topic", "sent.topic").alias("topic"),
        F.coalesce(F.col("leaf.real_queue_id"), F.col("sent.queue_id")).alias("queue_id"),
        F.col("leaf.unique_id").alias("unique_id"),
        F.col("leaf.level").alias("level"),
        F.col("first.store_ms").alias("store_ms"),
        "due_ms",
        F.col("sent.at").alias("delivered_phys"),
        F.col("sent.store_ms").alias("delivered_ms"),
        "late_ms",
        "hops",
        "deliveries",
        "verdict",
        "why",
    )


Rule = tuple[str, "Column", str]


def _rules(config: AuditConfig) -> list[Rule]:
    """Return (verdict, when, why) in the order of their weight: the first that holds counts."""
    c = F.col
    missing, sent = c("leaf").isNull(), c("deliveries") > 0
    waits = ~sent & (c("parked") == 0) & ~c("cancelled")
    overdue = waits & (c("due_ms") + config.late_ms < c("as_of_ms"))
    passed = F.coalesce("passed", overdue)
    changed = (c("sent.body_crc") != c("leaf.body_crc")) | (
        c("sent.body_len") != c("leaf.body_len")
    )
    properties = c("sent.properties_hash") != c("leaf.properties_hash")
    elsewhere = (c("sent.topic") != c("leaf.real_topic")) | (
        c("sent.queue_id") != c("leaf.real_queue_id")
    )
    fired = c("marked_at") > c("sent.at")  # whoever fires a timer puts a marker behind it
    no_record = missing & c("unit_at").isNotNull()
    yet = "not delivered; nothing passed it by yet"
    return [
        ("quarantined", no_record & (c("parked") > 0), "its record cannot be read"),
        ("corrupt", no_record, "no record lies where its queue points"),
        ("unexpected", missing & (sent | (c("parked") > 0)), "its origin is no scheduled message"),
        (IGNORED, missing, "a decision about no scheduled message"),
        ("corrupt", sent & changed, "the delivered body is another one"),
        ("corrupt", sent & properties, "the delivered properties are others"),
        ("corrupt", c("sent.damage").isNotNull(), "the delivered body does not match its CRC"),
        ("moved_twice", c("copies") > 1, "two copies of one record"),
        ("moved_twice", c("ended_old") > 0, "delivered, although a copy waits or was delivered"),
        ("duplicated", c("deliveries") + c("parked") > 1, "delivered more than once"),
        ("cancelled_but_fired", c("cancelled") & sent, "delivered after it was cancelled"),
        ("misrouted", sent & elsewhere, "delivered to another topic or queue"),
        ("moved", (c("late_ms") < 0) & fired, "delivered when somebody asked for it"),
        ("early", c("late_ms") < 0, "delivered before its time"),
        ("late", c("late_ms") > config.late_ms, "delivered late"),
        ("quarantined", c("parked") > 0, "it went to the quarantine topic"),
        ("cancelled", c("cancelled"), "cancelled in time"),
        ("corrupt", waits & c("leaf.damage").isNotNull(), "its body does not match its CRC"),
        ("corrupt", waits & c("due_ms").isNull(), "it does not say when it is due"),
        ("lost", waits & passed, "its time was passed by, and it was not delivered"),
        ("late", overdue, "not delivered, and overdue"),
        ("pending", waits, yet),
        ("moved", c("moves") > 0, "delivered at the time it was moved to"),
    ]  # fmt: skip


def counts(verdicts: DataFrame) -> dict[str, int]:
    """Return how many messages have each verdict; an action."""
    return {row["verdict"]: row["count"] for row in verdicts.groupBy("verdict").count().collect()}
