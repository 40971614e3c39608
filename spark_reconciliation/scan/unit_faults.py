"""Comparison of the units of queues with their records in the log.

    unit  -->  log offset, size, tags code   =?   record there: topic, queue, queue offset, tags

Each file of the log that has a record of some units is read once for them, small ones together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

from duemq_common.topics import SCHEDULE_TOPIC
from message_store.kernels import verify
from message_store.layout import SCANNED, UNIT
from message_store.verify.queues import FAULTS
from spark_reconciliation.arrays import Bytes, Numbers, Rows
from spark_reconciliation.scan.planning import RECORD_BYTES_MAX, LogPlan, ScanSegment
from spark_reconciliation.scan.pointed_scan import PointedRun, Segments, pointed_files

LOOK_BYTES: Final = 64 << 20  # bytes of the log that are compared at a time with units
Codes = npt.NDArray[np.uint8]
Indexes = npt.NDArray[np.intp]
COLUMNS: Final = {
    "phys_offset": "phys_offset",
    "size": "record_size",
    "tags_code": "tags_code",
}
"""Fields of UNIT, and their columns."""


def compare_units(segment: ScanSegment, values: Mapping[str, Numbers], log: LogPlan) -> Codes:
    """Return a code of `kernels.verify` for each unit; GOOD if its record cannot be read.

    Args:
        segment: Piece of a file of a queue.
        values: Columns of its units.
    """
    offsets, numbers = values["phys_offset"], values["queue_offset"]
    units = np.zeros(offsets.size, UNIT)
    for name, column in COLUMNS.items():
        units[name] = values[column]
    codes = np.full(offsets.size, verify.GOOD, np.uint8)
    if not log.files or not offsets.size:
        return codes
    codes[offsets >= log.bases[0]] = verify.ELSEWHERE
    breaks = np.flatnonzero(np.diff(numbers) != 1) + 1  # units at other log offsets were left out
    for first, end in pairwise([0, *breaks.tolist(), offsets.size]):
        _compare_row(segment, log, units[first:end], int(numbers[first]), codes[first:end])
    return codes


def _compare_row(
    segment: ScanSegment, log: LogPlan, units: Rows, number: int, codes: Codes
) -> None:
    """Set the codes of units with consecutive queue offsets from `number` on."""
    topic = np.frombuffer(segment.topic.encode("utf-8", "surrogateescape"), np.uint8)
    is_due, scratch = int(segment.topic == SCHEDULE_TOPIC), np.zeros(1, SCANNED)
    offsets = units["phys_offset"]
    order = np.argsort(offsets, kind="stable")
    unreadable = list[Indexes]()
    for segments, indexes in pointed_files(segment.root, log, offsets[order]):
        for data, start, some in _log_pieces(segments, offsets, order[indexes], unreadable):
            low, high = int(some.min()), int(some.max()) + 1
            queue, span = (segment.queue_id, number + low, is_due), (start, start + data.size)
            verify.check_units(units[low:high], data, span, topic, queue, scratch, codes[low:high])
    for some in unreadable:
        codes[some] = verify.GOOD


def _log_pieces(
    segments: Segments, offsets: Numbers, here: Indexes, unreadable: list[Indexes]
) -> Iterator[tuple[Bytes, int, Indexes]]:
    """Yield pieces of log files, their log offsets, and the indexes of the units in each.

    A record at the end of a piece may be cut off; the next piece contains it completely.

    Args:
        offsets: (n,) log offsets in units.
        here: (m,) indexes of those in the files, by ascending log offset.
        unreadable: Indexes of the units of files that cannot be read; added to.
    """
    places = offsets[here]
    if len(segments) > 1:
        run = PointedRun(segments, places)
        run.open()
        is_read = run.could_read(places)
        unreadable.append(here[~is_read])
        if is_read.any():
            yield run.data, run.base, here[is_read]
        return
    [file] = segments
    for low in range(0, file.size, LOOK_BYTES):
        first, end = np.searchsorted(places, (file.base + low, file.base + low + LOOK_BYTES))
        if first == end:
            continue
        high = min(low + LOOK_BYTES + RECORD_BYTES_MAX, file.size)
        try:
            data = file.root.read(file.path, low, high)
        except OSError:
            unreadable.append(here)
            return
        yield data, file.base + low, here[first:end]


def fault_texts(codes: Codes, values: Mapping[str, Numbers]) -> npt.NDArray[np.object_]:
    """Return why units do not agree with their records; None for those that do."""
    texts = np.full(codes.size, None, np.object_)
    for index in np.flatnonzero(codes != verify.GOOD).tolist():
        facts = {
            "phys": int(values["phys_offset"][index]),
            "size": int(values["record_size"][index]),
            "code": int(values["tags_code"][index]),
        }
        texts[index] = FAULTS[int(codes[index])].format(**facts)
    return texts
