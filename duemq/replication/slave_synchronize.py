"""Tables that a replica copies from its master in addition to the log.

    about every second   21, 201, 402   topics, groups, request modes   applied at once
                         9001           last orderly pops             }
                         43, 45         consumer offsets, levels      } applied once this log is
                         28             bounds of the master's log    } synced up to the end in 28

Consumer offsets (which include the progress of transactions and of revivals) and the progress of
levels describe deliveries that are in the master's log. If they were applied before this log has
these deliveries, and the master were lost then, this broker would treat messages as delivered and
transactions as ended although its log lacks the deliveries. The progress of timers is derived from
the log.

A replica keeps the log files that its master has removed until this log reaches the end that the
master's log had then; after that, its retention removes these files, too. Before the first complete
copy, retention removes nothing.

Orderly pops are requested before the offsets, so that no copied offset is older than the pops.
Apache's masters have no view of orderly pops, and 4.9.7 has no request modes: these tables of the
replica then stay unchanged.

With Apache's master, delayOffset.json is the progress of the levels, as Apache's deliveries do not
name their source records. With a DueMQ master, it only shortens the scan of the log at a start.

Source: SlaveSynchronize
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final

from duemq.net.client import RemotingClient
from duemq.pop.order_info import FILE_NAME as ORDER_INFO_FILE
from duemq.pop.order_info import VIEW as ORDER_INFO_VIEW
from duemq.pop.order_info import read_table
from duemq.registry.config_file import JsonObject
from duemq_common import json_dialect
from duemq_common.clock import Clock
from duemq_common.codes import RequestCode, ResponseCode
from duemq_common.errors import PeerError
from duemq_common.request import Request, Response
from message_store.retention.pins import UNKNOWN, FirstPending
from message_store.store import MessageStore

log = logging.getLogger(__name__)
INTERVAL_MS: Final = 1_000
SHARE: Final = 20  # a pause is at least this many times as long as the last copy
CALL_S_MAX: Final = 10.0
LOG_WAIT_MS: Final = 20
LOG_WAITS_MAX: Final = 500
DELAY_OFFSETS_FILE: Final = "delayOffset.json"
NOT_SERVED: Final = (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, ResponseCode.TOPIC_NOT_EXIST)
"""Response codes of masters that do not have a table: unknown request code, unknown view."""
GIVE_ACCOUNT: Final = ". Set innerClientAuthenticationCredentials to a super user of the master"
Replace = Callable[[JsonObject], None]


class SlaveSynchronize:
    """Copies tables of the master.

    Args:
        tables: By request code, in the order of the requests: the function that replaces a table
            by the master's response.
        progress: The same for tables that must not be ahead of the log.
        store: The store of the replica; on a replica, no plugin writes delayOffset.json.
        connect: Returns a client of an address.

    Attributes:
        address: `host:port` of the master for clients; empty: unknown.
        failure: Reason why the last copy failed; empty after a success.
        synchronized_ms: Time of the last copy without a failure, in ms since the epoch; None: none.
        log_end: End of the master's log in its last response; None: none from this master.
        first_needed: First log offset that retention must keep (a pin).
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
        self._store, self._texts = store, dict[str, str]()  # last written text by file name
        self._client: RemotingClient | None = None
        self._wake, self._stopping = asyncio.Event(), False
        self._call_lock = asyncio.Lock()
        self._applied: dict[RequestCode, bytes] = {}  # last applied response by code
        self._requests_ms = 0  # duration of the requests of the last copy
        self.address = ""
        self.failure = ""
        self.synchronized_ms: int | None = None
        self.log_end: int | None = None
        self.first_needed: FirstPending = UNKNOWN

    def follow(self, address: str) -> None:
        """Copy from the broker at this address from now on."""
        if address and address != self.address:
            self.address, self.log_end = address, None
            self._wake.set()

    async def run(self) -> None:
        """Copy the tables periodically until `stop`."""
        while not self._stopping:
            self._wake.clear()
            if self.address:
                await self._attempt()
            pause_ms = max(INTERVAL_MS, SHARE * self._requests_ms)
            await self._clock.wait(self._wake, until_ms=self._clock.now_ms() + pause_ms)
        await self._close()

    def stop(self) -> None:
        """Make `run` return, also while the master does not respond."""
        self._stopping = True
        self._wake.set()
        if self._client is not None:
            self._client.stop()

    async def _attempt(self) -> None:
        try:
            await self._copy()
        except (OSError, PeerError, LookupError, TypeError, ValueError) as error:
            reason = str(error) or f"no response ({type(error).__name__})"
            if reason != self.failure and not self._stopping:
                log.warning(
                    "cannot copy topics, groups and offsets from %s: %s; trying again",
                    self.address,
                    reason,
                )
            self.failure = reason
        else:
            self.failure, self.synchronized_ms = "", self._clock.now_ms()

    async def first_offset(self) -> int:
        """Request the first offset of the master's log.

        Raises:
            OSError: The master cannot be reached.
            PeerError: The master is unknown, or its response has no such offset.
        """
        if not self.address:
            raise PeerError(
                "the master is unknown: no name server of namesrvAddr knows a broker of this "
                "brokerName with the id 0"
            )
        return (await self._log_bounds())[0]

    async def configuration(self) -> tuple[dict[str, str], int]:
        """Request the master's configuration, then the end of its log.

        Returns:
            The properties by key, and the end of the log after they were read.

        Raises:
            OSError: The master cannot be reached.
            PeerError: The master refuses a request, or its response is malformed.

        Source: MixAll.properties2String, which escapes nothing
        """
        response = await self._read(RequestCode.GET_BROKER_CONFIG)
        lines = (line.partition("=") for line in response.decode("utf-8", "replace").splitlines())
        properties = {key.strip(): value.strip() for key, _, value in lines}
        return properties, (await self._log_bounds())[1]

    async def _log_bounds(self) -> tuple[int, int]:
        """Request the first offset of the master's log and its end."""
        code, address = RequestCode.GET_BROKER_RUNTIME_INFO, self.address
        table = _table(await self._read(code), code.name).get("table") or {}
        try:
            first, end = int(table["commitLogMinOffset"]), int(table["commitLogMaxOffset"])
        except (KeyError, TypeError, ValueError) as error:
            raise PeerError(
                f"the response of {address} to {code.name} lacks the bounds of its log"
            ) from error
        if self.address == address:  # else the response is a former master's
            self.log_end = end
        return first, end

    async def _copy(self) -> None:
        start_ms = self._clock.now_ms()
        faults: list[str] = []
        for code, replace in self._tables.items():
            response = await self._read_if_served(Request(code, {}))
            if response is not None:
                self._apply(code, response, replace, faults)
        order_info = await self._read_if_served(
            Request(RequestCode.GET_VIEW, {"view": ORDER_INFO_VIEW})
        )
        progress = {code: await self._read(code) for code in self._progress}
        code = RequestCode.GET_ALL_DELAY_OFFSET
        delay_offsets = _table(await self._read(code), code.name)
        first, end = await self._log_bounds()
        self._requests_ms = self._clock.now_ms() - start_ms
        if not await self._log_reaches(end):
            return  # drop the responses: the next copy requests newer ones
        for code, replace in self._progress.items():
            self._apply(code, progress[code], replace, faults)
        await self._write_delay_offsets(delay_offsets)
        self.first_needed = first
        if order_info is not None:
            try:
                table = _table(order_info, ORDER_INFO_VIEW)
                read_table(table)  # raises if invalid: a broker could not start with such a file
                await self._write_file(ORDER_INFO_FILE, json_dialect.dumps(table))
                self._store.truncations.follow(ORDER_INFO_FILE)
            except (OSError, PeerError, LookupError, TypeError, ValueError) as error:
                faults.append(f"{ORDER_INFO_VIEW}: {error}")
        if faults:
            raise PeerError("; ".join(faults))

    def _apply(
        self, code: RequestCode, response: bytes, replace: Replace, faults: list[str]
    ) -> None:
        """Replace a table unless the response equals the last applied one.

        A malformed table is added to `faults`; the other tables are copied.
        """
        if self._applied.get(code) == response:
            return
        try:
            replace(_table(response, code.name))
            self._applied[code] = response
        except (OSError, PeerError, LookupError, TypeError, ValueError) as error:
            faults.append(f"{code.name}: {error}")

    async def _log_reaches(self, end: int) -> bool:
        """Wait until this log is synced up to `end`; return whether it is."""
        for _ in range(LOG_WAITS_MAX):
            if self._store.max_offset >= end:
                return await self._store.flusher.wait(end, CALL_S_MAX)
            if self._wake.is_set() or self._stopping:
                break
            await self._clock.wait(self._wake, until_ms=self._clock.now_ms() + LOG_WAIT_MS)
        return False

    async def _write_delay_offsets(self, table: JsonObject) -> None:
        rows = table["offsetTable"]
        if not isinstance(rows, dict):
            raise PeerError(f"the offsetTable of {self.address} is not a JSON object")
        offsets = {int(level): int(offset) for level, offset in rows.items()}
        own = {"logGeneration": self._store.generation} if "commitLogOffset" in table else {}
        text = json_dialect.dumps({**table, **own, "offsetTable": offsets})
        await self._write_file(DELAY_OFFSETS_FILE, text)

    async def _write_file(self, name: str, text: str) -> None:
        """Write a file in `config/` unless it has this text already."""
        if self._texts.get(name) != text:
            await asyncio.to_thread(json_dialect.write_config, self._store.config_path(name), text)
            self._texts[name] = text

    async def _read(self, code: RequestCode) -> bytes:
        """Send a request without fields; return the body of the response."""
        return _body(await self._call(Request(code, {})), code.name)

    async def _read_if_served(self, request: Request) -> bytes | None:
        """Send a request; return the body of the response, None if it is not supported."""
        response = await self._call(request)
        if response.code in NOT_SERVED:
            return None
        return _body(response, f"request {request.code}")

    async def _call(self, request: Request) -> Response:
        async with self._call_lock:
            if self._stopping:
                raise ConnectionAbortedError("this broker has stopped copying tables")
            if self._client is None or self._client.address != self.address:
                await self._close()
                try:
                    self._client = self._connect(self.address)
                except ValueError as error:  # a name server returned it
                    text = f"the address of the master is malformed: {error}"
                    raise PeerError(text) from None
            return await self._client.call(request, timeout_s=CALL_S_MAX)

    async def _close(self) -> None:
        if self._client is not None:
            await self._client.close()
            self._client = None


def _body(response: Response, subject: str) -> bytes:
    if response.code:
        remedy = GIVE_ACCOUNT if response.code == ResponseCode.NO_PERMISSION else ""
        reason = f"the master refuses {subject} with code {response.code}: {response.remark}"
        raise PeerError(f"{reason.rstrip('.')}{remedy}")
    assert isinstance(response.body, bytes | memoryview)  # as received
    return bytes(response.body)


def _table(response: bytes, subject: str) -> JsonObject:
    """Return the object in the body of a response."""
    try:
        table = json_dialect.loads(response.decode())
    except ValueError as error:
        raise PeerError(f"the response to {subject} is not JSON: {error}") from error
    if not isinstance(table, dict):
        raise PeerError(f"the response to {subject} is not a JSON object")
    return table
