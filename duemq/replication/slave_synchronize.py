"""What a replica copies from its master in addition to the log.

    about every second   21, 201, 402   topics, groups, modes      as they come
                         9001           last orderly pops        }
                         43, 45         consumer offsets, levels } once this log is on the disk up
                         28             first offset of the log  } to the end of the master's then

Consumer offsets, among them the progress of transactions and of revivals, and the progress of
levels describe what the master's log has. Without the log they would claim deliveries and ends of
transactions that this log lacks, and messages would be lost with the master. Progress of timers is
derived from the log.

Files of the log that the master has removed are not needed here, once this log reaches as far as
the master's did: retention removes them as on a master. Before the first answer it removes nothing.

Orderly pops are copied before the offsets, whose acknowledgements may be newer than the pops.
A master of Apache's has no such view, and 4.9.7 no modes: what this store has stays.

After a master of Apache's, delayOffset.json is the progress of levels: its deliveries do not name
their source records. After one of ours it spares a start from reading the whole log.
Source: SlaveSynchronize
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final

from delivery.plugin import Request, Response
from duemq.admin.views import VIEW_REQUEST
from duemq.net.client import RemotingClient
from duemq.net.codes import RequestCode, ResponseCode
from duemq.pop.order_info import FILE_NAME as ORDER_INFO_FILE
from duemq.pop.order_info import VIEW as ORDER_INFO_VIEW
from duemq.pop.order_info import read_table
from duemq.registry.config_file import JsonObject
from message_store import json_dialect
from message_store.clock import Clock
from message_store.errors import PeerError
from message_store.retention.pins import UNKNOWN, FirstPending
from message_store.store import MessageStore

log = logging.getLogger(__name__)
INTERVAL_MS: Final = 1_000
SHARE: Final = 20  # a pause is at least so many times as long as the copy before
CALL_S_MAX: Final = 10.0
LOG_WAIT_MS: Final = 20
LOG_WAITS_MAX: Final = 500
DELAY_OFFSETS_FILE: Final = "delayOffset.json"
NOT_ANSWERED: Final = (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, ResponseCode.TOPIC_NOT_EXIST)
"""Answers of masters that do not have a table: no such code, no such view."""
Replace = Callable[[JsonObject], None]


class SlaveSynchronize:
    """Copies tables of the master.

    Args:
        tables: What takes the answer, by the request's code, in the order of the requests.
        progress: The same of what must not be ahead of the log.
        store: The store of the replica; no plugin of a replica writes its delayOffset.json.
        connect: Returns a client of an address.

    Attributes:
        failure: Why the last attempt failed; empty after a good one.
        synchronized_ms: When all tables were copied last; None: never.
        first_needed: First log offset that retention must keep; a pin.
    """

    def __init__(
        self,
        tables: Mapping[RequestCode, Replace],
        progress: Mapping[RequestCode, Replace],
        store: MessageStore,
        clock: Clock,
        connect: Callable[[str], RemotingClient],
    ) -> None:
        self._tables, self._progress = tables, progress
        self._clock, self._connect = clock, connect
        self._store, self._texts = store, dict[str, str]()  # of files, by name
        self._client: RemotingClient | None = None
        self._wake, self._stopping = asyncio.Event(), False
        self._asking = asyncio.Lock()
        self._taken: dict[RequestCode, bytes] = {}  # answers that the tables have
        self._asked_ms = 0  # how long the last answers took
        self.address = ""
        self.failure = ""
        self.synchronized_ms: int | None = None
        self.first_needed: FirstPending = UNKNOWN

    def follow(self, address: str) -> None:
        """Copy from the broker at this address from now on."""
        if address and address != self.address:
            self.address = address
            self._wake.set()

    async def run(self) -> None:
        """Copy until `stop`."""
        while not self._stopping:
            self._wake.clear()
            if self.address:
                await self._attempt()
            pause_ms = max(INTERVAL_MS, SHARE * self._asked_ms)
            await self._clock.wait(self._wake, until_ms=self._clock.now_ms() + pause_ms)
        await self._close()

    def stop(self) -> None:
        """Make `run` return."""
        self._stopping = True
        self._wake.set()

    async def _attempt(self) -> None:
        try:
            await self._copy()
        except (OSError, PeerError, LookupError, TypeError, ValueError) as error:
            why = str(error) or type(error).__name__
            if why != self.failure:
                log.warning("topics and offsets of %s are not copied: %s", self.address, why)
            self.failure = why
        else:
            self.failure, self.synchronized_ms = "", self._clock.now_ms()

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
        return (await self._log_bounds())[0]

    async def configuration(self) -> tuple[dict[str, str], int]:
        """Ask the master for its configuration, then for the end of its log.

        Source: MixAll.properties2String, which escapes nothing

        Raises:
            OSError: It cannot be reached.
            PeerError: It does not answer that.
        """
        answer = await self._ask(RequestCode.GET_BROKER_CONFIG)
        lines = (line.partition("=") for line in answer.decode("utf-8", "replace").splitlines())
        found = {key.strip(): value.strip() for key, _, value in lines}
        return found, (await self._log_bounds())[1]

    async def _log_bounds(self) -> tuple[int, int]:
        """Ask the master for the first offset of its log and its end."""
        code = RequestCode.GET_BROKER_RUNTIME_INFO
        found = _table(await self._ask(code), code.name).get("table") or {}
        try:
            return int(found["commitLogMinOffset"]), int(found["commitLogMaxOffset"])
        except (KeyError, TypeError, ValueError) as error:
            raise PeerError(f"{self.address} does not name the bounds of its log") from error

    async def _copy(self) -> None:
        start_ms = self._clock.now_ms()
        for code, replace in self._tables.items():
            answer = await self._ask_if_known(Request(code, {}))
            if answer is not None:
                self._take(code, answer, replace)
        order_info = await self._ask_if_known(Request(VIEW_REQUEST, {"view": ORDER_INFO_VIEW}))
        found = {code: await self._ask(code) for code in self._progress}
        code = RequestCode.GET_ALL_DELAY_OFFSET
        delay_offsets = _table(await self._ask(code), code.name)
        first, end = await self._log_bounds()
        self._asked_ms = self._clock.now_ms() - start_ms
        if not await self._reaches(end):
            return  # the next copy is newer, and this log longer
        for code, replace in self._progress.items():
            self._take(code, found[code], replace)
        await self._take_delay_offsets(delay_offsets)
        if order_info is not None:
            table = _table(order_info, ORDER_INFO_VIEW)
            read_table(table)  # no start fails because of it
            await self._take_file(ORDER_INFO_FILE, json_dialect.dumps(table))
        self.first_needed = first

    def _take(self, code: RequestCode, answer: bytes, replace: Replace) -> None:
        """Replace a table unless the answer is the same as before."""
        if self._taken.get(code) != answer:
            replace(_table(answer, code.name))
            self._taken[code] = answer

    async def _reaches(self, end: int) -> bool:
        """Wait until this log is on the disk up to an offset; return whether it is."""
        for _ in range(LOG_WAITS_MAX):
            if self._store.max_offset >= end:
                return await self._store.flusher.wait(end, CALL_S_MAX)
            if self._wake.is_set() or self._stopping:
                break
            await self._clock.wait(self._wake, until_ms=self._clock.now_ms() + LOG_WAIT_MS)
        return False

    async def _take_delay_offsets(self, found: JsonObject) -> None:
        offsets = {int(level): int(offset) for level, offset in found["offsetTable"].items()}
        own = {"logGeneration": self._store.generation} if "commitLogOffset" in found else {}
        text = json_dialect.dumps({**found, **own, "offsetTable": offsets})
        await self._take_file(DELAY_OFFSETS_FILE, text)

    async def _take_file(self, name: str, text: str) -> None:
        """Write a file of the configuration unless it has this text already."""
        if self._texts.get(name) != text:
            await asyncio.to_thread(json_dialect.write_config, self._store.config_path(name), text)
            self._texts[name] = text

    async def _ask(self, code: RequestCode) -> bytes:
        """Return the body of the answer to a request without fields."""
        return _body(await self._call(Request(code, {})), code.name)

    async def _ask_if_known(self, request: Request) -> bytes | None:
        """Return the body of an answer, None if the master does not have what is asked for."""
        answer = await self._call(request)
        if answer.code in NOT_ANSWERED:
            return None
        return _body(answer, f"request {request.code}")

    async def _call(self, request: Request) -> Response:
        async with self._asking:
            if self._client is None or self._client.address != self.address:
                await self._close()
                self._client = self._connect(self.address)
            return await self._client.call(request, timeout_s=CALL_S_MAX)

    async def _close(self) -> None:
        if self._client is not None:
            await self._client.close()
            self._client = None


def _body(answer: Response, what: str) -> bytes:
    if answer.code:
        raise PeerError(f"{what} is answered {answer.code}: {answer.remark}")
    assert isinstance(answer.body, bytes | memoryview)  # as received
    return bytes(answer.body)


def _table(answer: bytes, what: str) -> JsonObject:
    """Return the object in the body of an answer."""
    try:
        table = json_dialect.loads(answer.decode())
    except ValueError as error:
        raise PeerError(f"the answer to {what} is not JSON: {error}") from error
    if not isinstance(table, dict):
        raise PeerError(f"the answer to {what} is not an object")
    return table
