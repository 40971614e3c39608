"""Facts of an audit that the next one continues from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from message_store.layout import CQ_UNIT
from spark_reconciliation.arrays import Numbers
from spark_reconciliation.audit.file_checks import plan_pieces
from spark_reconciliation.engine import F
from spark_reconciliation.scan.planned_store import Planned
from spark_reconciliation.scan.planning import PARTITION_BYTES
from spark_reconciliation.scan.record_mark import RecordMark, read_mark
from spark_reconciliation.scan.roles import RARE, Role
from spark_reconciliation.scan.store_part import KnownQueue, QueueKey

if TYPE_CHECKING:
    from spark_reconciliation.audit.verdicts import AuditSurvey

NAMELESS: Final = "records of an Apache broker named no origins"
UNREADABLE: Final = "files of the log or of queues could not be read"
INCOMPLETE: Final = "files of the log were missing or had other sizes"
UNCLEAN: Final = "an Apache broker had not stopped cleanly"
LOG, QUEUES, TIMER_LOG = "commitlog/", "consumequeue/", "timerlog/"


@dataclass(frozen=True, slots=True)
class RareFacts:
    """Facts of the rare records of a store.

    Attributes:
        refusal: Reason why the next audit must be a full one; empty: it need not be.
        inspected: Log offsets of damage and clock steps.
        has_timer_faults: Whether units of the timer log are malformed, or differ from a record.
        faulty_units: (n,) ascending log offsets in units that differ from a record.
        faulty_topics: Topics of these units.
        records: (n,) log offsets of the rare records.
    """

    refusal: str
    inspected: tuple[int, ...]
    has_timer_faults: bool
    faulty_units: Numbers
    faulty_topics: frozenset[str]
    records: Numbers

    @classmethod
    def of(cls, survey: AuditSurvey, store: Planned) -> RareFacts:
        """Read the rare rows of a survey; an action."""
        names = ("role", "phys_offset", "prepared_offset", "damage", "file")
        rows = survey.rare.where((F.col("role") >= RARE) & (F.col("role") < Role.REMOVED_PENDING))
        table = rows.where(F.col("role") != Role.TOPIC).select(*names).toArrow()
        role = table["role"].to_numpy()
        offsets = table["phys_offset"].fill_null(-1).to_numpy()
        prepared = table["prepared_offset"].fill_null(0).to_numpy()
        is_place = np.isin(role, (Role.GAP, Role.CLOCK))
        about = table.filter(np.isin(role, (Role.GAP, Role.UNIT))).select(
            ["role", "damage", "file"]
        )
        places = [row.values() for row in about.to_pylist()]
        gaps = [(damage, file or "") for kind, damage, file in places if kind == Role.GAP]
        copies = np.isin(role, (Role.LEVEL_COPY, Role.TIMER_COPY)) & (prepared >= 0)
        nameless = copies | np.isin(role, (Role.MARKER, Role.CANDIDATE))
        refusal = _refusal(store) or (NAMELESS if nameless.any() else "")
        if any(kind == "unreadable" and file.startswith((LOG, QUEUES)) for kind, file in gaps):
            refusal = refusal or UNREADABLE
        return cls(
            refusal,
            tuple(np.unique(offsets[is_place & (offsets >= 0)]).tolist()),
            any(file.startswith(TIMER_LOG) for _, file in gaps),
            np.unique(offsets[role == Role.UNIT]),
            frozenset(file.split("/")[1] for kind, _, file in places if kind == Role.UNIT),
            offsets[role < Role.TOPIC],
        )


def _refusal(store: Planned) -> str:
    if any(one.kind != "stray-file" for one in store.plan.findings):
        return INCOMPLETE
    return UNCLEAN if store.progress.queue_coverage.until_ms >= 0 else ""


def known_queues(
    survey: AuditSurvey, former: Mapping[QueueKey, KnownQueue], facts: RareFacts
) -> tuple[KnownQueue, ...]:
    """Return the queues as they were read; an action."""
    sums = survey.rare.where(F.col("role") == Role.QUEUE)
    rows = sums.groupBy("topic", "queue_id").agg(
        F.bit_xor("identity").alias("sum"),
        F.max("file_offset").alias("end"),
        F.max_by("phys_offset", "file_offset").alias("last"),
    )
    queues = []
    for row in rows.collect():
        queue = KnownQueue(row["topic"], row["queue_id"], row["sum"])
        before = former.get((queue.topic, queue.queue_id), queue)
        units, last = before.units, before.last
        if row["end"] is not None:
            units, last = row["end"] // CQ_UNIT.itemsize, row["last"]
        compared = 0 if queue.topic in facts.faulty_topics else units
        queues.append(KnownQueue(queue.topic, queue.queue_id, queue.sum, units, last, compared))
    return tuple(queues)


def last_mark(store: Planned) -> RecordMark | None:
    """Return the last record of the log, None without one.

    Raises:
        OSError: The log cannot be read.
    """
    return read_mark(store.root, store.plan, store.plan.last)


def compared_timers(store: Planned) -> int:
    """Return the position up to which an audit compares units of the timer log with records.

    Raises:
        OSError: The store cannot be read.
    """
    if store.progress.read_ms is None:
        return 0
    pieces, _ = plan_pieces(store.root, store.plan, PARTITION_BYTES, store.progress, 0)
    return min((one.limit for one in pieces if one.about is not None), default=0)
