"""Generator of client message ids, for messages without UNIQ_KEY. MessageClientIDSetter"""

from __future__ import annotations

import datetime
import os
import zlib

from duemq_common.clock import Clock


class UniqueIds:
    """Generator of ids of 32 hex digits.

    An id consists of address, process id, source, ms since the start of the month, a counter.

    Args:
        address: Address of the host.
        source: Number of the generator; None: a hash of the address.
    """

    def __init__(self, address: bytes, clock: Clock, source: int | None = None) -> None:
        process = os.getpid() & 0xFFFF
        if source is None:
            source = zlib.crc32(address + b"duemq")
        self._head = f"{address[:4].hex().upper()}{process:04X}{source & 0xFFFF_FFFF:08X}"
        self._clock = clock
        self._counter = 0
        self._ms, self._ms_head = -1, ""  # beginning of the ids of one millisecond
        self._month_start_ms = self._month_end_ms = 0

    def next_id(self) -> str:
        """Return an id that this process does not repeat within a month."""
        now_ms = self._clock.now_ms()
        if now_ms != self._ms:
            self._set_ms(now_ms)
        self._counter = (self._counter + 1) & 0xFFFF
        return f"{self._ms_head}{self._counter:04X}"

    def _set_ms(self, now_ms: int) -> None:
        if not self._month_start_ms <= now_ms < self._month_end_ms:
            self._set_month(now_ms)
        since_ms = (now_ms - self._month_start_ms) & 0xFFFF_FFFF
        self._ms, self._ms_head = now_ms, f"{self._head}{since_ms:08X}"

    def _set_month(self, now_ms: int) -> None:
        day = datetime.datetime.fromtimestamp(now_ms / 1_000, datetime.UTC)
        start = day.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        end = (start + datetime.timedelta(days=32)).replace(day=1)
        self._month_start_ms = int(start.timestamp()) * 1_000
        self._month_end_ms = int(end.timestamp()) * 1_000
