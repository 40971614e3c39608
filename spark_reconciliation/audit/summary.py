"""Summary of an audit: counts, lateness, worst cases, stored tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Final

from spark_reconciliation.audit.aggregated_audit import by_lateness
from spark_reconciliation.audit.rules import CLEAN, EXCUSED, VERDICTS
from spark_reconciliation.engine import F, Window
from spark_reconciliation.scan.tables import CLOCK_SET_BACK

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

    from spark_reconciliation.jobs.outside import ProofSummary
    from spark_reconciliation.jobs.replicas import GroupResult

SHOWN_MAX: Final = 20
ALIKE_SHOWN: Final = 3  # messages of each verdict and reason
OFFENDERS_MAX: Final = 200
PERCENTILES: Final = (0.5, 0.99)
Reason = tuple[str, str]  # verdict, reason


@dataclass(frozen=True, slots=True)
class StateUse:
    """Use of the state of earlier audits.

    Attributes:
        full_because: Reason of a full audit; empty: it was incremental.
        start, end: Log offsets between which all records were read.
        earlier: Number of earlier records that were read again.
    """

    full_because: str
    start: int
    end: int
    earlier: int


@dataclass(frozen=True, slots=True)
class Summary:
    """Attributes:
    verdicts: Number of messages by verdict.
    lateness_ms: Lateness of deliveries: percentiles and maximum.
    offenders: Some messages of each finding and reason, the gravest first; `alike`: number of
        messages with the same.
    unread: Unreadable or malformed parts of files.
    clock: Positions in the log after which the store's clock was set back.
    excused: Number of findings that a clock step explains.
    outside: Results of the comparison with tables of producers and consumers.
    groups: Results of the comparison of the stores of a group.
    state: Use of saved state; None: the audit saves none.
    """

    verdicts: dict[str, int]
    lateness_ms: dict[str, int | None]
    offenders: list[dict[str, object]] = field(default_factory=list)
    unread: list[dict[str, object]] = field(default_factory=list)
    clock: list[dict[str, object]] = field(default_factory=list)
    excused: int = 0
    outside: tuple[ProofSummary, ...] = ()
    groups: tuple[GroupResult, ...] = ()
    state: StateUse | None = None

    @property
    def complete(self) -> bool:
        """Whether everything was readable."""
        return not self.unread

    @property
    def clean(self) -> bool:
        """Whether there are no findings and everything was readable."""
        kept = not set(self.verdicts) - CLEAN
        return self.complete and kept and not self.divergent and not self.differing

    @property
    def findings(self) -> int:
        """Number of messages with a finding."""
        return sum(count for name, count in self.verdicts.items() if name not in CLEAN)

    @property
    def messages(self) -> int:
        """Number of messages with a verdict."""
        return sum(self.verdicts.values())

    @property
    def divergent(self) -> int:
        """Number of records that differ between the stores of a group."""
        return sum(group.differing for group in self.groups)

    @property
    def differing(self) -> int:
        """Number of names that differ from the tables of producers and consumers."""
        return sum(proof.findings for proof in self.outside)

    @property
    def conclusion(self) -> str:
        """Result of the audit in one sentence."""
        messages = f"{self.messages:,} messages"
        verdict = f"{self.findings:,} of {messages} have a finding"
        if not self.complete:
            return f"The audit is incomplete: files have faults or could not be read ({verdict})."
        if self.divergent:
            return f"The stores of a group differ in {self.divergent:,} records ({verdict})."
        if self.differing:
            return f"{self.differing:,} names differ from the tables ({verdict})."
        return f"Every promise was kept ({messages})." if self.clean else f"{verdict}."

    def to_json(self) -> dict[str, object]:
        """Return the result as JSON, for `--json`."""
        facts = {"messages": self.messages, "clean": self.clean, "complete": self.complete}
        return facts | asdict(self)


def summarize(
    verdicts: DataFrame | None,
    unread: DataFrame | None,
    *,
    kept: Sequence[Row] = (),
) -> Summary:
    """Compute a summary; runs the audit, once if `verdicts` is persisted.

    Args:
        verdicts, unread: Results of `read.audit_stores`; None without rows.
        kept: Counts of other messages, see `aggregated_audit.AggregatedAudit`.
    """
    others = [] if verdicts is None else by_lateness(verdicts, F.col("why")).collect()
    rows = [*kept, *others]
    alike: Counter[Reason] = Counter()
    for row in others:
        alike[row["verdict"], row["why"]] += row["count"]
    counts: Counter[str] = Counter()
    times: Counter[int] = Counter()
    for row in rows:
        counts[row["verdict"]] += row["count"]
        if row["late"] is not None:
            times[row["late"]] += row["count"]
    order = {name: rank for rank, name in enumerate(VERDICTS)}
    offenders = []
    if verdicts is not None and set(counts) - CLEAN:
        offenders = _some_of_each(verdicts.where(~F.col("verdict").isin(*CLEAN)), alike)
    places, clock = _places(unread) if unread is not None else ([], [])
    excused = sum(alike[reason] for reason in alike if reason[1] in EXCUSED) if clock else 0
    names = [f"p{round(share * 100)}" for share in PERCENTILES]
    position = [_percentile(times, share) for share in PERCENTILES]
    latest = max((row["max"] for row in rows if row["max"] is not None), default=None)
    return Summary(
        {name: counts[name] for name in sorted(counts, key=lambda name: order[name])},
        dict(zip([*names, "max"], [*position, latest], strict=True)),
        offenders,
        places,
        clock,
        excused,
    )


def _some_of_each(bad: DataFrame, alike: Mapping[Reason, int]) -> list[dict[str, object]]:
    """Return some messages of each verdict and reason, with the number of such messages.

    The engines keep only the first rows of each group while they read it.
    """
    group = Window.partitionBy("verdict", "why").orderBy("store", "root")
    some = bad.withColumn("number", F.row_number().over(group))
    some = some.where(F.col("number") <= ALIKE_SHOWN)
    grave = F.array_position(F.array(*map(F.lit, VERDICTS)), F.col("verdict"))
    order = some.withColumn("grave", grave).orderBy("grave", "why", "store", "root")
    offenders = order.drop("grave", "number").limit(OFFENDERS_MAX)
    rows = [row.asDict() for row in offenders.collect()]
    return [row | {"alike": alike[row["verdict"], row["why"]]} for row in rows]


def _places(unread: DataFrame) -> tuple[list[dict[str, object]], ...]:
    """Return some unreadable parts of files, and some positions of clock steps."""
    steps = F.col("damage") == CLOCK_SET_BACK
    return tuple(
        [row.asDict() for row in selection.limit(SHOWN_MAX).collect()]
        for selection in (
            unread.where(~steps).orderBy("store", "file", "offset", "phys_offset"),
            unread.where(steps).orderBy("store", "phys_offset"),
        )
    )


def _percentile(times: Counter[int], share: float) -> int | None:
    """Return the smallest value that at least `share` of all do not exceed, None if empty."""
    threshold, passed = share * times.total(), 0
    for value in sorted(times):
        passed += times[value]
        if passed >= threshold:
            return value
    return None


def write_parquet(verdicts: DataFrame, path: str) -> None:
    """Write verdicts as Parquet below `path`, a folder for each due day and verdict.

    Raises:
        pyspark.errors.AnalysisException: The path exists.
    """
    day = F.to_date(F.timestamp_millis(F.coalesce("due_ms", "delivered_ms", F.lit(0))))
    verdicts.withColumn("day", day).write.partitionBy("day", "verdict").parquet(path)
