"""Aggregated audit: counts messages without a finding, and returns the others one by one.

    tallies --one aggregation--> ok, pending: counted by lateness
                                 all others: their keys --> `verdicts`, with all columns

Most messages of most stores have no finding and are only counted. The same rules (`rules`) and
facts decide about both groups. Stores with copies, with records of Apache's brokers or with a clock
step are examined message by message.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from spark_reconciliation.audit.plain_histories import history_of_sums
from spark_reconciliation.audit.plain_sums import SUMS, WORDS, Note, add_up, touch
from spark_reconciliation.audit.rules import judge
from spark_reconciliation.audit.tally import SENT, UNUSUAL
from spark_reconciliation.engine import F
from spark_reconciliation.scan.roles import Role

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from spark_reconciliation.audit.verdicts import AuditSurvey

WHOLE: Final = frozenset(
    {Role.LEVEL_COPY, Role.TIMER_COPY, Role.MARKER, Role.CANDIDATE, Role.CLOCK}
)
"""Roles of records that make the audit examine every message of a store."""
KEPT: Final = ("ok", "pending", "removed")
EXACT_BITS: Final = 12  # lateness up to 4 s is counted by ms, more with a precision of 1 in 4096
FINDINGS_MAX: Final = 100_000  # maximum messages with findings that are examined one by one
LATE_MS: Final = 1 << 60  # lateness of a delivery whose due time is unknown to the tallies


@dataclass(frozen=True, slots=True)
class Tallies:
    """Table `tallies` of the audited stores.

    Attributes:
        buckets: Number of its buckets.
        as_of_ms: Present time of each store; empty: unknown.
        words: WORDS or PLACED_WORDS, the numbers of each record.
        note: Called with the rows of each bucket, see `plain_sums.add_up`.
    """

    frame: DataFrame
    buckets: int
    as_of_ms: tuple[int, ...] = ()
    words: int = WORDS
    note: Note | None = None


@dataclass(frozen=True, slots=True)
class AggregatedAudit:
    """Attributes:
    kept: verdict, late (see `late_bucket`), count and max of messages without a finding.
    rest: Verdicts about all other messages, see `verdicts.audit`; None without any.
    """

    kept: list[Any]
    rest: DataFrame | None


def late_bucket(late: Column) -> Column:
    """Return lateness rounded to steps that grow with it."""
    step = F.pow(F.lit(2), F.greatest(F.floor(F.log2(F.abs(late))) - EXACT_BITS, F.lit(0)))
    return F.when(F.abs(late) < 1 << EXACT_BITS, late).otherwise(
        (F.floor(late / step) * step).cast("bigint")
    )


def by_lateness(verdicts: DataFrame, *more: Column) -> DataFrame:
    """Return the number of messages by verdict and lateness, with the maximum of each."""
    late = F.col("late_ms")
    weight = F.col("weight") if "weight" in verdicts.columns else F.lit(1)
    return verdicts.groupBy("verdict", late_bucket(late).alias("late"), *more).agg(
        F.sum(weight).alias("count"), F.max(late).alias("max")
    )


def aggregate_verdicts(survey: AuditSurvey, tallies: Tallies) -> AggregatedAudit:
    """Count messages without a finding and return the verdicts about all others; an action."""
    if survey.met & WHOLE:
        if tallies.note is not None:
            added_up(survey, tallies).count()
        return AggregatedAudit([], survey.verdicts(survey.histories(survey.plain), ids=False))
    verdicts = judge(aggregated_histories(added_up(survey, tallies)), survey.stores, survey.config)
    other = F.when(~F.col("verdict").isin(*KEPT), F.col("key")).alias("key")
    rows = by_lateness(verdicts, other).persist()
    keys = rows.where(F.col("key").isNotNull()).select("key")
    count = keys.count()
    if count > FINDINGS_MAX:  # examine every message
        rows.unpersist()
        return AggregatedAudit([], survey.verdicts(survey.histories(survey.plain), ids=False))
    kept = rows.where(F.col("key").isNull()).collect()  # at most one row for each lateness
    if not count and survey.events is None:
        rows.unpersist()
        return AggregatedAudit(kept, None)
    plain = survey.plain.join(F.broadcast(keys), "key") if count else survey.plain.limit(0)
    return AggregatedAudit(kept, survey.verdicts(survey.histories(plain), ids=False))


def added_up(survey: AuditSurvey, tallies: Tallies) -> DataFrame:
    """Return `plain_sums.SUMS` of messages without rare records."""
    dealt = tallies.frame
    if survey.touched is not None:
        keys = survey.touched.select("key")
        dealt = dealt.unionByName(
            keys.mapInArrow(
                partial(touch, count=tallies.buckets, words=tallies.words), dealt.schema
            )
        )
    together = dealt.repartition(tallies.buckets, "bucket")
    add = partial(
        add_up,
        late_ms=survey.config.late_ms,
        as_of_ms=tallies.as_of_ms,
        words=tallies.words,
        note=tallies.note,
    )
    sums = together.mapInArrow(add, SUMS)
    return sums if tallies.note is None else sums.persist()  # each bucket is noted once


def aggregated_histories(sums: DataFrame) -> DataFrame:
    """Return the columns of `plain_histories.HISTORY` that sums contain, and their weight.

    An uncertain due time becomes a late delivery or a missing due time, so that the message is
    examined.
    """
    unusual = F.col("tally").bitwiseAND(F.lit(1 << UNUSUAL).cast("bigint")) != 0
    sent = F.shiftright("tally", SENT) != 0
    low = F.lit((1 << 32) - 1).cast("bigint")
    nothing = F.lit(None).cast("bigint")
    return history_of_sums(
        sums.withColumns(
            {
                "body": F.shiftrightunsigned("content", 32),
                "target": F.col("content").bitwiseAND(low),
                "properties": F.col("rest"),
                "head": F.lit(0),
                "due_ms": F.when(sent, F.lit(0)).when(~unusual, -F.col("time_ms")),
                "sent_ms": F.when(sent & unusual, F.lit(LATE_MS)).when(sent, F.col("time_ms")),
                **dict.fromkeys(
                    ("store_ms", "level", "held_topic", "sent_topic", "sent_at"), nothing
                ),
                **dict.fromkeys(("held_queue", "sent_queue"), nothing),
            }
        ),
        "weight",
    )
