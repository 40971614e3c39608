"""One audit run, from its start to its ledger row.

    check stores --> verdicts --> Parquet, summary, report --> a row in the ledger

The caller creates the session: local, on a cluster, or behind Spark Connect.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from duemq_common.clock import Clock
from duemq_common.disk_errors import naming
from duemq_common.errors import UsageError
from duemq_common.existence import exists, is_directory, is_file
from duemq_common.topics import OWNERSHIP_TOPIC
from message_store.recovery.store_lock import is_locked
from spark_reconciliation.engine import use_engine_of
from spark_reconciliation.jobs.phases import REPORT, RULES, current_phases

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from duemq_common.ledger.ledger import Ledger
    from spark_reconciliation.audit.audit_config import AuditConfig
    from spark_reconciliation.audit.summary import Summary
    from spark_reconciliation.jobs.audit_ledger import AuditRecord
    from spark_reconciliation.jobs.outside import TableComparison
    from spark_reconciliation.report.page import Pages

CLEAN, FINDINGS, COULD_NOT_RUN = 0, 1, 2
CURVE_ROWS_MAX: Final = 100_000
PYTHON_ERROR: Final = re.compile(r"^[A-Za-z_][\w.]*: (.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRequest:
    """Requested audit.

    Attributes:
        stores: Directories or URLs. Of the stores of one group, one is audited and compared with
            the others.
        late_ms: Maximum lateness that is ok.
        as_of_ms: Time until which due messages should be delivered; None: the present time if a
            broker has the stores open, else the newest record.
        levels_ms: Delays of levels 1, 2, ...; empty: those of the stores, else Apache's default.
        trust_clock: Whether clock steps explain findings.
        out: Directory for the verdicts as Parquet; empty: none.
        report: File for the HTML report; empty: none.
        capacity_per_s: Maximum deliveries per second of the broker, for the forecast.
        comparison: Tables of producers and consumers to compare with; None: none.
        made_by: Name of the user or of the job that runs the audit.
        state: Directory of the state of incremental audits; None: none.
    """

    stores: tuple[str, ...]
    late_ms: int = 2_000
    as_of_ms: int | None = None
    levels_ms: tuple[int, ...] = ()
    trust_clock: bool = False
    out: str = ""
    report: Path | None = None
    capacity_per_s: int = 0
    comparison: TableComparison | None = None
    made_by: str = ""
    state: Path | None = None

    @property
    def brief(self) -> bool:
        """Whether only counts and findings are requested."""
        return not self.out and self.report is None and self.comparison is None

    @property
    def outputs(self) -> list[str]:
        """Directories that the audit writes: verdicts, and rows of each comparison."""
        compared = self.comparison
        tables = {} if compared is None else {"sent": compared.sent, "received": compared.received}
        names = [name for name, table in tables.items() if table is not None]
        return [self.out, *(f"{self.out.rstrip('/')}-{name}" for name in names)] if self.out else []

    @property
    def config(self) -> AuditConfig:
        """Settings of the audit."""
        from spark_reconciliation.audit.audit_config import AuditConfig
        from spark_reconciliation.scan.levels import DEFAULT_LEVELS_MS

        return AuditConfig(
            late_ms=self.late_ms,
            as_of_ms=self.as_of_ms,
            trust_clock=self.trust_clock,
            levels_ms=self.levels_ms or DEFAULT_LEVELS_MS,
        )


def check_request(request: AuditRequest) -> None:
    """Check stores and outputs before Java starts.

    Raises:
        UsageError: A directory is not a store, or the files cannot be written there.
    """
    check_stores(request.stores)
    if request.state is not None:
        _check_state(request)
    if request.report is not None:
        folder = request.report.absolute().parent
        if is_directory(request.report) or not is_directory(folder):
            is_one = is_directory(request.report)
            reason = "it is a directory" if is_one else f"there is no folder {folder}"
            raise UsageError(f"--report {request.report} cannot be written: {reason}")
        written = exists(request.report) and not is_file(request.report)  # a device, or a pipe
        if not os.access(request.report if written else folder, os.W_OK):
            raise UsageError(f"--report {request.report} cannot be written: no permission")
    for out in request.outputs:
        path = out.removeprefix("file://")
        if "://" not in path and exists(Path(path)):
            reason = "exists" if out == request.out else f"cannot be used, {out} exists"
            raise UsageError(f"--out {request.out} {reason}: name a new directory")


def _check_state(request: AuditRequest) -> None:
    store, count = request.stores[0], len(request.stores)
    if not request.brief:
        text = "--state is for counts and findings: omit --report, --out, --sent and --received"
        raise UsageError(text)
    if count > 1:
        raise UsageError(f"--state takes one store, not {count}: audit each with its own state")
    if "://" in store.removeprefix("file://"):
        raise UsageError(f"--state needs a store on a disk of this machine, not {store}")


def absolute(store: str) -> str:
    """Return a local path as an absolute one: workers may have another working directory."""
    return store if "://" in store else os.path.abspath(store)


def check_stores(stores: Sequence[str]) -> None:
    """Check the directories before Java starts.

    Raises:
        UsageError: A directory is not a store; the text names a store above or below it.
    """
    from spark_reconciliation.scan.planned_store import NO_STORE

    for store in stores:
        path = Path(store.removeprefix("file://"))
        if "://" in store.removeprefix("file://") or _is_store(path):
            continue
        reason = NO_STORE
        if not is_directory(path):
            reason = "it is a file" if exists(path) else "there is no such directory"
        near = (path.parent, *(sorted(path.iterdir()) if is_directory(path) else ()))
        hint = next((f"; {one} is one" for one in near if _is_store(one)), "")
        raise UsageError(f"{store} is not a store: {reason}{hint}")


def _is_store(path: Path) -> bool:
    from spark_reconciliation.scan.files import Root
    from spark_reconciliation.scan.planned_store import must_be_store

    try:
        must_be_store(Root(str(path)))
    except UsageError:
        return False
    return True


def run_audit(spark: SparkSession, request: AuditRequest, clock: Clock) -> Summary:
    """Audit stores; write the requested files.

    Raises:
        UsageError: A path is not a store.
        OSError: The report cannot be written.
        pyspark.errors.PySparkException: Spark failed, or `out` exists.
        duckdb.Error: The local engine failed.
    """
    with use_engine_of(spark):
        return _run_audit(spark, at_present(request, clock), clock)


def _run_audit(spark: SparkSession, request: AuditRequest, clock: Clock) -> Summary:
    from spark_reconciliation.audit.summary import summarize, write_parquet
    from spark_reconciliation.incremental.incremental_audit import audit_with_state
    from spark_reconciliation.jobs.outside import read_tables, run_proofs
    from spark_reconciliation.jobs.replicas import compare_groups
    from spark_reconciliation.local.frame import LocalSession
    from spark_reconciliation.scan.store_groups import grouped_stores
    from spark_reconciliation.spark.read import audit_stores, count_stores

    if request.state is not None:
        assert isinstance(spark, LocalSession)
        return audit_with_state(spark, request.stores[0], request.config, request.state)
    groups = grouped_stores(request.stores)
    request = replace(request, stores=tuple(group.store for group in groups))
    compared = compare_groups(spark, groups)
    if request.brief:
        brief, unread = count_stores(spark, request.stores, request.config)
        summary = summarize(brief.rest, unread, kept=brief.kept)
        if brief.rest is not None:
            brief.rest.unpersist()
        return replace(summary, groups=compared)
    comparison = request.comparison
    tables = None if comparison is None else read_tables(spark, comparison, clock.now_ms())
    verdicts, unread = audit_stores(spark, request.stores, request.config)
    verdicts = verdicts.persist()
    phases = current_phases()
    if request.out:
        phases.begin(REPORT)
        write_parquet(verdicts, request.out)
        phases.begin(RULES)
    summary = replace(summarize(verdicts, unread), groups=compared)
    if tables is not None:
        proofs = run_proofs(spark, request.stores, verdicts, tables, out=request.out)
        summary = replace(summary, outside=proofs)
    if request.report is not None:
        from spark_reconciliation.report.page import html_report

        phases.begin(REPORT)
        pages = pages_of(spark, request, verdicts)
        page = html_report(summary, stores=request.stores, pages=pages, at_ms=clock.now_ms())
        write_whole(request.report, page)
    verdicts.unpersist()
    return summary


def write_whole(path: Path, text: str) -> None:
    """Write a file; a reader finds the former one, or this one whole.

    Raises:
        OSError: It cannot be written; the former one remains.
    """
    if exists(path) and not is_file(path):  # a device, or a pipe
        path.write_text(text, encoding="utf-8")
        return
    target = path.resolve()
    unfinished = target.with_name(f".{target.name}.unfinished")
    try:
        with naming(path):
            unfinished.write_text(text, encoding="utf-8")
        os.replace(unfinished, target)
    except OSError:
        unfinished.unlink(missing_ok=True)
        raise


def at_present(request: AuditRequest, clock: Clock) -> AuditRequest:
    """Return the request with the present time if it names none and a broker has the stores open.

    A broker that delivers nothing writes no record, so its newest record is no clock.
    """
    if request.as_of_ms is not None or not all(map(_is_open, request.stores)):
        return request
    return replace(request, as_of_ms=clock.now_ms())


def _is_open(store: str) -> bool:
    path = store.removeprefix("file://")
    return "://" not in path and is_locked(Path(path))


def pages_of(spark: SparkSession, request: AuditRequest, verdicts: DataFrame) -> Pages:
    """Return the rows of the jobs that a report shows."""
    from spark_reconciliation.audit.migration_proof import migration_proof, proof_totals
    from spark_reconciliation.jobs import jobs
    from spark_reconciliation.report.page import Pages
    from spark_reconciliation.spark.read import read_table

    def rows(frame: DataFrame) -> list[dict[str, object]]:
        return [row.asDict() for row in frame.limit(CURVE_ROWS_MAX).collect()]

    late = jobs.lateness(verdicts, bucket_ms=jobs.bucket_of(verdicts)).persist()
    load = jobs.forecast(verdicts).persist()
    schedule = read_table(spark, request.stores, "schedule")
    columns = ("store", "phys_offset", "topic", "queue_id", "queue_offset", "level", "due_ms")
    messages = read_table(spark, request.stores, "messages", (*columns, "body"))
    proof: list[dict[str, object]] = []
    if not messages.where(f"topic = '{OWNERSHIP_TOPIC}'").isEmpty():
        proof = rows(proof_totals(migration_proof(verdicts, messages, schedule)))
    return Pages(
        totals=rows(jobs.totals(verdicts)),
        lateness=rows(late),
        trend=rows(jobs.trend(late)),
        worst=rows(jobs.worst(verdicts)),
        forecast=rows(jobs.capacity(load, rate_per_s=request.capacity_per_s or None)),
        days=rows(jobs.by_day(load)),
        proof=proof,
    )


@dataclass(slots=True)
class LedgerRow:
    """Row of one run in the ledger.

    Attributes:
        warn: Called with the cause if the row cannot be written.
    """

    ledger: Ledger | None
    audit_id: str
    started_ms: int
    request: AuditRequest
    clock: Clock
    warn: Callable[[str], None]

    @classmethod
    def begin(
        cls,
        request: AuditRequest,
        url: str,
        *,
        clock: Clock,
        salt: bytes,
        warn: Callable[[str], None],
    ) -> LedgerRow:
        """Open the ledger, if there is one.

        Args:
            url: URL of a ledger; empty: that of the store; `none`: no row is written.
        Raises:
            LedgerError: The ledger of `url` cannot be used.
        """
        from duemq_common.ledger.errors import LedgerError
        from spark_reconciliation.jobs.audit_ledger import location_of, new_audit_id

        now_ms, ledger = clock.now_ms(), None
        location = None if url == "none" else location_of(request.stores, url)
        if location is not None:
            from duemq_common.ledger.ledger import Ledger

            try:
                ledger = Ledger.open(location, now_ms=now_ms)
            except LedgerError as error:
                if url:
                    raise
                warn(f"{error}. The audit continues without a row there.")
        return cls(ledger, new_audit_id(now_ms, salt), now_ms, request, clock, warn)

    def done(self, summary: Summary) -> int:
        """Write the row of an audit that ran; return its exit code."""
        code = CLEAN if summary.clean else FINDINGS
        late = summary.lateness_ms
        compared = summary.divergent or summary.differing  # which the verdicts do not show
        self._write(
            self._record(
                exit_code=code,
                why=summary.conclusion if compared else "",
                complete=summary.complete,
                unread=len(summary.unread),
                verdicts=summary.verdicts,
                findings=summary.offenders,
                late_p50_ms=late.get("p50"),
                late_p99_ms=late.get("p99"),
                late_max_ms=late.get("max"),
            )
        )
        return code

    def failed(self, reason: str) -> int:
        """Write the row of an audit that could not run; return its exit code."""
        self._write(self._record(exit_code=COULD_NOT_RUN, complete=False, why=reason))
        return COULD_NOT_RUN

    def _record(self, **facts: Any) -> AuditRecord:
        from spark_reconciliation.jobs.audit_ledger import AuditRecord

        return AuditRecord(
            audit_id=self.audit_id,
            started_ms=self.started_ms,
            ended_ms=self.clock.now_ms(),
            made_by=self.request.made_by,
            stores=self.request.stores,
            late_limit_ms=self.request.late_ms,
            **facts,
        )

    def _write(self, record: AuditRecord) -> None:
        from duemq_common.ledger.errors import LedgerError

        if self.ledger is None:
            return
        try:
            self.ledger.write([record])
        except LedgerError as error:
            self.warn(f"{error}. The audit has no row there.")
        finally:
            self.ledger.close()


def reason_of(error: BaseException) -> str:
    """Return one line of an error: that of a Python error inside Spark's, the remedy for too little
    memory, that of a lost executor, else the first.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    ours = [line for line in lines if line.startswith("duemq_common.errors.")]
    if ours:
        return ours[-1].partition(": ")[2]
    if "java.lang.OutOfMemoryError" in str(error):
        return "Java ran out of memory: give twice as much with --memory (default: 2g)"
    if "JAVA_GATEWAY_EXITED" in str(error):
        return "Java ended at its start: give --memory of less than the memory that is free"
    lost = re.search(r"ExecutorLostFailure \((executor [^)\n]*)\)(?: Reason)?(.*)", str(error))
    if lost:
        return lost[1] + lost[2].rstrip()
    _, traceback, after = str(error).rpartition("Traceback (most recent call last)")
    raised = PYTHON_ERROR.search(after) if traceback else None
    if raised is not None:
        hint = ": the workers need DueMQ, see Run it on a cluster"
        return raised[1] + (hint if raised[1].startswith("No module named") else "")
    return (lines or [type(error).__name__])[0]


def is_sparks(error: BaseException) -> bool:
    """Return whether an engine raised an error, or the connection to it."""
    return type(error).__module__.startswith(("pyspark", "py4j", "duckdb", "_duckdb"))
