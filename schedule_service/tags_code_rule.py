"""Tags codes of the schedule topic: the time at which a level message is due.

Source: CommitLog.checkMessageAndReturnSize
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from message_store.layout import Row
from message_store.log.commit_log import CommitLog
from schedule_service.levels import LevelTable


class LevelRule(Struct, frozen=True):
    """Rule of `message_store.hooks`: store time plus the delay of the record's DELAY level.

    Attributes:
        tables: Ascending by `from_offset`; a record uses the last one at or before it, so that a
            rebuilt queue keeps its due times.
    """

    topic: str
    tables: Sequence[LevelTable]

    def tags_codes(self, rows: npt.NDArray[np.void], log: CommitLog) -> npt.NDArray[np.int64]:
        """Return the due time of each record with a level, and the hash of the tag of others.

        A record with an origin (a copy of an older record) has its due time as a property.
        """
        codes: npt.NDArray[np.int64] = rows["tags_hash"].copy()
        has_level = rows["delay_level"] > 0
        chosen = rows[has_level]
        codes[has_level] = chosen["store_ms"] + self._delays_ms(chosen)
        for index in np.flatnonzero(has_level & (rows["prepared_offset"] < 0)).tolist():
            codes[index] = _recorded_due_ms(log, rows[index], int(codes[index]))
        return codes

    def _delays_ms(self, rows: npt.NDArray[np.void]) -> npt.NDArray[np.int64]:
        starts = np.array([table.from_offset for table in self.tables], np.int64)
        which = np.maximum(np.searchsorted(starts, rows["phys_offset"], side="right") - 1, 0)
        delays_ms = np.empty(rows.size, np.int64)
        for number, table in enumerate(self.tables):
            mask = which == number
            level_max = table.delays_ms.size - 1
            delays_ms[mask] = table.delays_ms[np.minimum(rows["delay_level"][mask], level_max)]
        return delays_ms


def _recorded_due_ms(log: CommitLog, row: Row, otherwise: int) -> int:
    """Return the value of DUEMQ_DUE_MS if it is the record's last property."""
    start = int(row["phys_offset"]) + int(row["prop_pos"])
    text = log.view(start, int(row["prop_len"])).tobytes()
    name, _, value = text.rstrip(b"\x02").rpartition(b"\x02")[2].partition(b"\x01")
    return int(value) if name == b"DUEMQ_DUE_MS" and value.isdigit() else otherwise
