"""`spark.readStream.format("rocketmq-store")`: the log as a stream, table `messages` only.

    offset   {store: log offset of its next record}
    tickMs   maximum ms between two batches, also without new records: then the offset also contains
             the time; 0 (default): only batches with records

Each micro-batch covers the records appended since the last one. With a checkpoint every record is
read exactly once, also across restarts. Records that retention removed before they were read are a
row with the damage `missing-file`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from duemq_common.clock import SystemClock
from spark_reconciliation.audit.table_reader import ScanPart
from spark_reconciliation.scan.files import Root
from spark_reconciliation.scan.planning import (
    Finding,
    LogEnds,
    LogPlan,
    ScanSegment,
    grouped,
    log_segments,
    plan_until,
)
from spark_reconciliation.scan.store_state import Progress
from spark_reconciliation.spark.reader import SparkStoreReader

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_reconciliation.scan.options import ScanOptions

Offsets = dict[str, int]
TICK: Final = "@tick"


class StoreStreamReader(DataSourceStreamReader):
    """Planner of micro-batches; `reader` reads their parts."""

    def __init__(self, options: ScanOptions, reader: SparkStoreReader) -> None:
        self._options, self._reader = options, reader
        self._ends = LogEnds()

    def initialOffset(self) -> Offsets:
        """Return the first offsets of the logs, or the option startOffset."""
        return {root.url: max(plan.min, self._options.start) for root, plan in self._plans()}

    def latestOffset(self, start: Any = None, limit: object = None) -> Offsets:
        """Return the current ends of the logs, at least `start`."""
        previous_ends = start or {}
        ends = ((root.url, min(plan.end, self._options.end)) for root, plan in self._plans())
        current_ends = {url: max(end, previous_ends.get(url, 0)) for url, end in ends}
        tick_ms = self._options.tick_ms
        if tick_ms:
            current_ends[TICK] = max(
                SystemClock().now_ms() // tick_ms * tick_ms, previous_ends.get(TICK, 0)
            )
        return current_ends

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        """Return the parts of one micro-batch."""
        parts: list[ScanPart] = []
        for number, root in enumerate(self._roots()):
            until = end.get(root.url, 0)
            plan = plan_until(root, until)
            first = start.get(root.url, plan.min)
            size = self._options.partition_bytes
            segments = log_segments(root, plan, bytes_max=size, first=first)
            progress = Progress(number)
            parts += [
                ScanPart(group, progress=progress)
                for group in grouped(segments, size, ScanSegment.length)
            ]
            if first < min(plan.min, until):
                lost = (_removed(root, plan, first, until),)
                parts.append(ScanPart(findings=lost, progress=progress))
        return [InputPartition(part) for part in parts or [ScanPart()]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the record batches of a part."""
        return self._reader.read(partition)

    def _roots(self) -> Iterator[Root]:
        for path in self._options.paths:
            yield Root(path.rstrip("/"))

    def _plans(self) -> Iterator[tuple[Root, LogPlan]]:
        for root in self._roots():
            yield root, self._ends.plan(root)


def _removed(root: Root, plan: LogPlan, first: int, until: int) -> Finding:
    size = min(plan.min, until) - first
    text = f"{size} bytes of the log were removed before they were read"
    return Finding(root.url, "commitlog", 0, size, "missing-file", text, first)
