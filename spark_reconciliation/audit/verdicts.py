"""Verdicts of the audit: one row per scheduled message, with a verdict and its reason.

    held         a pending record: in a level's queue, or in the queue of the timers
    copy         a pending record with another one as origin: moved, rolled, copied by compaction
    delivery, quarantine, cancel     end of a message; each names its origin

    root --copy--> hop --copy--> leaf --delivery--> topic          one message, one verdict

Nearly all messages have one pending record and one delivery that names it; a single aggregation of
numbers examines these (`plain_histories`). All other records are rare. The audit finds them first
and examines their messages with the complete history (`chains`, `histories`). Records of DueMQ name
their origin (docs/decisions/0002, 0014), records of Apache's brokers do not: `origins` derives it
from unique id, target, birth and time.

Due time, topic and queue of a message are those of the leaf. A marker after the deciding record is
written for Apache's brokers and cancels no message; without that record the message is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from duemq_common.topics import PENDING_TOPICS
from spark_reconciliation.audit.audit_config import AuditConfig
from spark_reconciliation.audit.chains import find_roots
from spark_reconciliation.audit.histories import whole_histories
from spark_reconciliation.audit.keyed_events import (
    BROADCAST_MAX,
    key_of,
    keyed,
    unit_events,
    with_origin,
)
from spark_reconciliation.audit.origins import with_origins
from spark_reconciliation.audit.plain_histories import plain_message_histories
from spark_reconciliation.audit.pointers import POINTER
from spark_reconciliation.audit.rules import judge
from spark_reconciliation.audit.unit_times import UNIT_BYTES
from spark_reconciliation.engine import F
from spark_reconciliation.scan.roles import PENDING_ROLES, PLAIN, RARE, Role
from spark_reconciliation.scan.tables import CLOCK_SET_BACK

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

AUDITED: Final = (
    "store_id",
    "phys_offset",
    "role",
    "store_ms",
    "prepared_offset",
    "body_crc",
    "body_len",
    "damage",
    "properties_hash",
    "head_hash",
    "target",
    "topic_hash",
    "queue_id",
    "real_queue_id",
    "level",
    "due_ms",
    "out_ms",
    "rolls",
    "unit_ms",
    "passed",
    "other_time",
    "queued",
)
"""Columns of `messages` that the audit reads of every message."""
RARE_COLUMNS: Final = ("identity", "name_hash", "topic", "store", "file", "file_offset", "note")
COLUMNS: Final = (
    *AUDITED,
    *RARE_COLUMNS,
    "queue_offset",
    "born_ms",
    "sys_flag",
    "unique_id",
    "real_topic",
    "cancels",
)
"""Columns of `messages` for jobs that need all columns of an audit in one table."""
UNREAD_ROLES: Final = frozenset({Role.GAP, Role.CLOCK, Role.UNIT})
"""Roles of the rows of `AuditSurvey.unread`."""
COMPLETE_HISTORY_ROLES: Final = frozenset(
    {*range(RARE, Role.TOPIC), Role.UNIT, Role.REMOVED_PENDING}
)
"""Roles of records that make the audit examine the complete history of a message."""
NAMES_MAX: Final = 8  # maximum topics that are named without a join
Reader = Callable[[Sequence[str], Sequence[int]], "DataFrame"]
"""Returns the named columns of `messages`, of the given roles."""
Queues = Callable[[Sequence[str]], "DataFrame"]
"""Returns the units of the queues of some topics that do not agree with their records."""


@dataclass(frozen=True, slots=True)
class AuditSurvey:
    """Rare records of stores, and the messages that they belong to.

    Attributes:
        stores: Table `stores`, with the clock steps if there are any.
        rare: Records of rare roles, unreadable ranges, units that do not agree with a record.
        met: Roles of `rare`.
        names: Names of topics, by hash.
        plain: Pending messages, and deliveries that name them, as `keyed`.
        touched: Keys and roots of messages that a rare record belongs to; None without any.
        events: All records of these messages.
        cached: Persisted frames. Unlike checkpoints they are computed again if an executor is lost.
    """

    messages: Reader
    stores: DataFrame
    config: AuditConfig
    rare: DataFrame
    met: frozenset[int]
    names: dict[int, str]
    plain: DataFrame
    touched: DataFrame | None
    events: DataFrame | None
    cached: tuple[DataFrame, ...] = ()

    def release(self) -> None:
        """Free the persisted frames; verdicts that are computed later compute them again."""
        for frame in self.cached:
            frame.unpersist()

    def histories(self, plain: DataFrame) -> DataFrame:
        """Return `HISTORY` of plain messages, and of all messages with rare records."""
        if self.touched is not None:
            plain = plain.join(self.touched, "key", "left_anti")
        histories = plain_message_histories(plain)
        return (
            histories
            if self.events is None
            else histories.unionByName(whole_histories(self.events))
        )

    def verdicts(self, histories: DataFrame, *, ids: bool) -> DataFrame:
        """Return the verdicts about histories; see `audit`."""
        verdicts = _named(judge(histories, self.stores, self.config), self.names)
        unique = F.lit(None).cast("string")
        if ids:
            pending = self.messages(("store_id", "phys_offset", "unique_id"), PENDING_ROLES)
            pending = pending.select(key_of("phys_offset").alias("leaf_key"), "unique_id")
            verdicts, unique = verdicts.join(pending, "leaf_key", "left"), F.col("unique_id")
        return verdicts.select(
            "store",
            "root",
            "leaf",
            "topic",
            "queue_id",
            unique.alias("unique_id"),
            "level",
            "store_ms",
            "due_ms",
            "delivered_phys",
            "delivered_ms",
            "late_ms",
            "hops",
            "deliveries",
            "verdict",
            "why",
        )

    @property
    def unread(self) -> DataFrame:
        """Unreadable ranges, and positions of clock steps; see `audit`."""
        return _unread(self.rare, self.stores)


def take_survey(
    messages: Reader, queues: Queues, stores: DataFrame, config: AuditConfig | None = None
) -> AuditSurvey:
    """Find all rare records; an action. Arguments: see `audit`."""
    config = config or AuditConfig()
    looked_for = (*range(RARE, Role.GAP + 1), Role.CLOCK, Role.REMOVED_PENDING, Role.QUEUE)
    rare = messages((*AUDITED, *RARE_COLUMNS), looked_for).persist()
    cached = [rare]
    met, names, differing = _roles_and_topics(rare)
    if differing:
        units = _faulty_units(queues(differing)).persist()
        cached.append(units)
        met |= set() if units.isEmpty() else {Role.UNIT}
        rare = rare.unionByName(units, allowMissingColumns=True)
    plain, other_events = _events(messages, rare, met, config)
    touched, events = None, None
    if met & COMPLETE_HISTORY_ROLES:
        if Role.UNIT in met:
            units = unit_events(rare.where(F.col("role") == Role.UNIT), plain)
            other_events = other_events.unionByName(units, allowMissingColumns=True)
        touched = _touched(other_events, cached)
    if touched is not None:
        events = plain.unionByName(other_events, allowMissingColumns=True).join(touched, "key")
    stores_with_steps = (
        stores.join(_steps(rare), "store_id", "left") if Role.CLOCK in met else stores
    )
    return AuditSurvey(
        messages,
        stores_with_steps,
        config,
        rare,
        frozenset(met),
        names,
        plain,
        touched,
        events,
        tuple(cached),
    )


def audit(
    messages: Reader,
    queues: Queues,
    stores: DataFrame,
    config: AuditConfig | None = None,
    *,
    ids: bool = True,
) -> tuple[DataFrame, DataFrame]:
    """Return verdicts and unreadable ranges.

    There is a verdict for each scheduled message, and for each delivery without a source record.

    Args:
        messages: Reader of table `messages`, of one store or several.
        queues: Reader of table `consume_queue` of the same stores.
        stores: Table `stores`.
        ids: Whether `unique_id` is filled, which takes another scan of the messages.
    Returns:
        store, root, leaf (log offsets), topic, queue_id, unique_id, level, store_ms, due_ms,
        delivered_phys, delivered_ms, late_ms, hops, deliveries, verdict, why;
        and store, phys_offset, damage, file, offset (in the file), note. The value CLOCK_SET_BACK
        of damage is the position of a clock step.
    """
    survey = take_survey(messages, queues, stores, config)
    return survey.verdicts(survey.histories(survey.plain), ids=ids), survey.unread


def _roles_and_topics(survey: DataFrame) -> tuple[set[int], dict[int, str], list[str]]:
    """Return the roles of the rare records, the names of topics by hash, and the topics of queues
    whose sums of records and units differ; an action.
    """
    is_queue = F.col("role") == Role.QUEUE
    named = is_queue | (F.col("role") == Role.TOPIC)
    queue = (F.when(is_queue, F.col(name)).alias(name) for name in ("store_id", "queue_id"))
    names = (F.when(named, F.col(name)).alias(name) for name in ("topic_hash", "topic"))
    groups = survey.groupBy("role", *queue, *names).agg(
        F.bit_xor("identity").alias("sum"), F.count("file").alias("files")
    )
    rows = groups.collect()
    queues = [row for row in rows if row["role"] == Role.QUEUE]
    differing = {row["topic"] for row in queues if row["files"] and row["sum"]}
    roles = {row["role"] for row in rows} - {Role.QUEUE}
    by_hash = {row["topic_hash"]: row["topic"] for row in rows if row["topic_hash"] is not None}
    return roles, by_hash, sorted(differing)


def _named(verdicts: DataFrame, names: dict[int, str]) -> DataFrame:
    """Return verdicts with the name of the topic; null: unknown."""
    if len(names) > NAMES_MAX:
        name_table = verdicts.sparkSession.createDataFrame(
            list(names.items()), "topic_hash bigint, topic string"
        )
        return verdicts.join(F.broadcast(name_table), "topic_hash", "left")
    name = F.lit(None).cast("string")
    for value, text in names.items():
        name = F.when(F.col("topic_hash") == value, text).otherwise(name)
    return verdicts.withColumn("topic", name)


def reader_of(messages: DataFrame) -> Reader:
    """Return a reader of given rows: `COLUMNS` of `messages`."""

    def read(columns: Sequence[str], roles: Sequence[int]) -> DataFrame:
        rows = messages.where(F.col("role").isin(*roles))
        if Role.TOPIC in roles:
            name = F.when(F.col("role").isin(*PENDING_ROLES), F.col("real_topic")).otherwise(
                F.col("topic")
            )
            names = messages.where("topic_hash is not null").select(
                "topic_hash", name.alias("topic")
            )
            names = names.distinct().withColumn("role", F.lit(Role.TOPIC))
            rows = rows.unionByName(names, allowMissingColumns=True)
        return rows.select(*columns)

    return read


def _faulty_units(queues: DataFrame) -> DataFrame:
    """Return units that do not agree with their records; `damage`: of delivered messages."""
    faulty = queues.where(F.col("fault").isNotNull())
    pending = F.col("topic").isin(*PENDING_TOPICS)
    number = F.concat(F.lit("unit "), F.col("queue_offset"), F.lit(": "), F.col("fault"))
    folder = F.concat(F.lit("consumequeue/"), F.col("topic"), F.lit("/"), F.col("queue_id"))
    return faulty.select(
        "store_id",
        "phys_offset",
        F.when(~pending, F.lit(POINTER)).alias("damage"),
        F.lit(Role.UNIT).alias("role"),
        folder.alias("file"),
        (F.col("queue_offset") * UNIT_BYTES).alias("file_offset"),
        number.alias("note"),
    )


def _unread(survey: DataFrame, stores: DataFrame) -> DataFrame:
    """Return unreadable ranges, and positions of clock steps."""
    kind = F.when(F.col("role") == Role.CLOCK, CLOCK_SET_BACK).otherwise(F.col("damage"))
    gaps = survey.where(F.col("role").isin(Role.GAP, Role.CLOCK, Role.UNIT))
    gaps = gaps.withColumn("damage", kind).where("damage is not null").drop("store")
    named_gaps = gaps.join(F.broadcast(stores.select("store_id", "store")), "store_id", "left")
    return named_gaps.select(
        "store", "phys_offset", "damage", "file", F.col("file_offset").alias("offset"), "note"
    )


def _steps(rare: DataFrame) -> DataFrame:
    """Return the clock steps of each store: position and amount, and the latest time.

    A step is used only if many records show it; one record with another time is not a step.
    """
    clock_rows = rare.where((F.col("role") == Role.CLOCK) & (F.col("passed") == 1))
    back = F.struct(
        F.col("phys_offset").alias("at"), (F.col("out_ms") - F.col("store_ms")).alias("ms")
    )
    return clock_rows.groupBy("store_id").agg(
        F.collect_list(back).alias("steps"), F.max("out_ms").alias("newest_ms")
    )


def _events(
    messages: Reader, rare: DataFrame, roles: set[int], config: AuditConfig
) -> tuple[DataFrame, DataFrame]:
    """Return the records of plain messages, and all other records, with their keys."""
    plain = messages(AUDITED, sorted(PLAIN | {Role.REMOVED_SETTLED}))
    by_place = (F.col("role") < Role.MARKER) | (F.col("role") == Role.REMOVED_PENDING)
    named = rare.where(by_place)
    nameless = (F.col("origin").isNull()) & F.col("role").isin(Role.LEVEL_COPY, Role.TIMER_COPY)
    plain, rare = with_origin(plain), with_origin(rare)
    if not roles & {Role.LEVEL_COPY, Role.TIMER_COPY, Role.MARKER, Role.CANDIDATE}:
        return keyed(plain, config), keyed(with_origin(named), config)
    held = with_origin(messages((*AUDITED, "identity", "name_hash"), PENDING_ROLES))
    ended = plain.where(F.col("role") == Role.DELIVERY).select("store_id", "origin")
    ended = ended.unionByName(
        rare.where(F.col("role") == Role.QUARANTINE).select("store_id", "origin")
    )
    origins = with_origins(
        rare.where(nameless),
        rare.where(F.col("role") == Role.CANDIDATE),
        rare.where(F.col("role") == Role.MARKER),
        held,
        ended,
        rare.where(F.col("role") == Role.REMOVED_PENDING),
    )
    rest = rare.where(by_place & ~nameless)
    rest = rest.unionByName(origins.rolled).unionByName(origins.marked)
    plain = plain.unionByName(origins.delivered.select(*plain.columns))
    return keyed(plain, config), keyed(rest, config)


def _touched(events: DataFrame, cached: list[DataFrame]) -> DataFrame | None:
    """Return the keys of messages with a rare record, with their roots.

    Args:
        cached: Persisted frames, added to.
    Returns:
        key, root, number of copies of the record, position of the first copy; None without keys.
    """
    roots = find_roots(events)
    named = events.select("key").distinct()
    if roots is None:
        nothing = F.lit(None).cast("bigint")
        keys = named.select(
            "key",
            F.col("key").alias("root"),
            F.lit(0).cast("bigint").alias("copies"),
            nothing.alias("first_copy"),
        )
    else:
        cached += roots.cached
        keys = named.join(roots.frame, "key", "full")
        keys = keys.withColumns(
            {"root": F.coalesce("root", "key"), "copies": F.coalesce("copies", F.lit(0))}
        )
    keys = keys.persist()
    cached.append(keys)
    count = keys.count()
    if not count:
        return None
    return F.broadcast(keys) if count <= BROADCAST_MAX else keys
