"""Tables that a replica copies from its master in addition to the log: topics, groups, offsets.

    every 10 s, and once when the master is known: 21, 201, 43 --> tables --> files below config/
                                                   45          --> delayOffset.json
    every second while they are small:             43          --> consumer offsets

After a master of Apache's, delayOffset.json is the progress of levels: its deliveries do not name
their source records. After one of ours it spares a start from reading the whole log: it names the
log offset that it describes, and is written here once this log has reached that offset. So it never
claims a delivery that this log does not have. Progress of timers is derived from the log.
Source: SlaveSynchronize
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final

from delivery.plugin import Request
from duemq.net.client import RemotingClient
from duemq.net.codes import RequestCode
from duemq.registry.config_file import JsonObject
from message_store import json_dialect
from message_store.clock import Clock
from message_store.errors import PeerError
from message_store.store import MessageStore

log = logging.getLogger(__name__)
INTERVAL_MS: Final = 10_000
OFFSETS_INTERVAL_MS: Final = 1_000
OFFSETS_BYTES_MAX: Final = 256 << 10
"""Consumer offsets of about 1,500 groups: 40 ms of the replica, 4 ms of the master for a copy."""
CALL_S_MAX: Final = 10.0
OFFSETS: Final = RequestCode.GET_ALL_CONSUMER_OFFSET
Replace = Callable[[JsonObject], None]


class SlaveSynchronize:
    """Copies tables of the master.

    Args:
        tables: What takes the answer, by the request's code, in the order of the requests.
        store: The store of the replica; no plugin of a replica writes its delayOffset.json.
        connect: Returns a client of an address.

    Attributes:
        failure: Why the last attempt failed; empty after a good one.
        synchronized_ms: When all tables were copied last; None: never.
    """

    def __init__(
        self,
        tables: Mapping[RequestCode, Replace],
        store: MessageStore,
        clock: Clock,
        connect: Callable[[str], RemotingClient],
    ) -> None:
        self._tables, self._clock, self._connect = tables, clock, connect
        self._store, self._delay_offsets_text = store, ""
        self._delay_offsets = store.config_path("delayOffset.json")
        self._client: RemotingClient | None = None
        self._wake, self._stopping = asyncio.Event(), False
        self._asking = asyncio.Lock()
        self._full_due_ms, self._answer_bytes = 0, dict[RequestCode, int]()
        self.address = ""
        self.failure = ""
        self.synchronized_ms: int | None = None

    def follow(self, address: str) -> None:
        """Copy from the broker at this address from now on."""
        if address and address != self.address:
            self.address, self._full_due_ms = address, 0
            self._wake.set()

    async def run(self) -> None:
        """Copy until `stop`."""
        while not self._stopping:
            self._wake.clear()
            if self.address:
                await self._attempt()
            await self._clock.wait(self._wake, until_ms=self._next_ms())
        await self._close()

    def _next_ms(self) -> int:
        """Return when to copy next: consumer offsets sooner, if that is cheap."""
        now_ms = self._clock.now_ms()
        due_ms = self._full_due_ms if self._full_due_ms > now_ms else now_ms + INTERVAL_MS
        size = self._answer_bytes.get(OFFSETS)
        if self.failure or size is None or size > OFFSETS_BYTES_MAX:
            return due_ms
        return min(due_ms, now_ms + OFFSETS_INTERVAL_MS)

    def stop(self) -> None:
        """Make `run` return."""
        self._stopping = True
        self._wake.set()

    async def _attempt(self) -> None:
        now_ms = self._clock.now_ms()
        is_full = now_ms >= self._full_due_ms or self._full_due_ms - now_ms > INTERVAL_MS
        if is_full:
            self._full_due_ms = now_ms + INTERVAL_MS
        try:
            if is_full:
                await self._copy()
            else:
                self._tables[OFFSETS](await self._ask(OFFSETS))
        except (OSError, PeerError, LookupError, TypeError, ValueError) as error:
            why = str(error) or type(error).__name__
            if why != self.failure:
                log.warning("topics and offsets of %s are not copied: %s", self.address, why)
            self.failure = why
        else:
            self.failure = ""
            if is_full:
                self.synchronized_ms = self._clock.now_ms()

    async def first_offset(self) -> int:
        """Ask the master for the first offset of its log.

        Raises:
            OSError: It cannot be reached.
            PeerError: It is not known yet, or does not answer that.
        """
        if not self.address:
            raise PeerError(
                "the master is unknown: no name server of namesrvAddr knows a broker of this "
                "brokerName with the id 0"
            )
        found = (await self._ask(RequestCode.GET_BROKER_RUNTIME_INFO)).get("table") or {}
        try:
            return int(found["commitLogMinOffset"])
        except (KeyError, TypeError, ValueError) as error:
            raise PeerError(f"{self.address} does not name the start of its log") from error

    async def _copy(self) -> None:
        for code, replace in self._tables.items():
            replace(await self._ask(code))
        await self._copy_delay_offsets()

    async def _copy_delay_offsets(self) -> None:
        found = await self._ask(RequestCode.GET_ALL_DELAY_OFFSET)
        if not self._has_log_of(found):
            return  # the next copy is newer, and this log longer
        offsets = {int(level): int(offset) for level, offset in found["offsetTable"].items()}
        own = {"logGeneration": self._store.generation} if "commitLogOffset" in found else {}
        text = json_dialect.dumps({**found, **own, "offsetTable": offsets})
        if text != self._delay_offsets_text:
            await asyncio.to_thread(json_dialect.write_config, self._delay_offsets, text)
            self._delay_offsets_text = text

    def _has_log_of(self, delay_offsets: JsonObject) -> bool:
        """Return whether this log has every delivery that the master's offsets cover."""
        end = delay_offsets.get("commitLogOffset")
        return end is None or int(end) <= self._store.max_offset

    async def _ask(self, code: RequestCode) -> JsonObject:
        """Return the body of the answer to a request without fields."""
        async with self._asking:
            if self._client is None or self._client.address != self.address:
                await self._close()
                self._client = self._connect(self.address)
            answer = await self._client.call(Request(code, {}), timeout_s=CALL_S_MAX)
        if answer.code:
            raise PeerError(f"{code.name} is answered {answer.code}: {answer.remark}")
        assert isinstance(answer.body, bytes | memoryview)  # as received
        self._answer_bytes[code] = len(answer.body)
        try:
            table = json_dialect.loads(bytes(answer.body).decode())
        except ValueError as error:
            raise PeerError(f"the answer to {code.name} is not JSON: {error}") from error
        if not isinstance(table, dict):
            raise PeerError(f"the answer to {code.name} is not an object")
        return table

    async def _close(self) -> None:
        if self._client is not None:
            await self._client.close()
            self._client = None
