"""Pops (200050) and acknowledgements (200051) of all connections of one loop turn.

    pops              --read--> checkpoints --+
    acknowledgements  ------------> records --+--one append--> revive log --> one write each

A pop that finds nothing, or is orderly, a one-way request, and whatever exceeds a limit of a turn,
is left to its handler, which takes requests one by one.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from delivery.plugin import Request, Response
from duemq.net.codes import RequestCode, ResponseCode
from duemq.net.connection import Connection
from duemq.net.dispatcher import AccessCheck, encode_answer, refusal
from duemq.net.notices import Notices
from duemq.pop.ack_turns import AckTurns, TakenAcks
from duemq.pop.acks import AckProcessor
from duemq.pop.pop import Popped, PopProcessor, PopRequest
from duemq.pop.revive_log import ReviveLog
from message_store.errors import RequestError

POPS_MAX: Final = 32  # of one turn
UNSENT_BYTES_MAX: Final = 1 << 18  # of a connection; beyond, its pops wait
UNCONFIRMED_MAX: Final = 16_384  # acknowledgements, and KiB of messages, that wait to be confirmed


class PopMeter(Protocol):
    """Measures requests."""

    def start(self) -> int: ...
    def together(self, asked: int, code: int, count: int, since_ms: int) -> None: ...


@dataclass(frozen=True, slots=True)
class TakenPop:
    """A pop that found messages."""

    connection: Connection
    request: Request
    serialize_type: int
    wanted: PopRequest
    popped: Popped


class PopTurns:
    """Takes pops and acknowledgements during a turn, and answers at its end (a `FrameRuns`).

    Args:
        access: Checks each request; None: a peer may do everything.
        is_ready: Returns whether kernels can be called.
        confirms: Whether answers wait for the disk or for replicas.
    """

    codes: Final[frozenset[int]] = frozenset({RequestCode.POP_MESSAGE, RequestCode.ACK_MESSAGE})

    def __init__(
        self,
        pops: PopProcessor,
        acks: AckProcessor,
        revive_log: ReviveLog,
        failed: Notices,
        meter: PopMeter,
        *,
        access: AccessCheck | None,
        is_ready: Callable[[], bool],
        confirms: bool,
    ) -> None:
        self._processor, self._revive_log = pops, revive_log
        self._failed, self._meter, self._access = failed, meter, access
        self._confirms = confirms
        # With accounts, every request has its own signature.
        self._acks = AckTurns(acks, lambda: access is None and is_ready())
        self._asked: dict[Connection, tuple[Request, int, PopRequest]] = {}
        self._since_ms = 0
        self._waiting: set[asyncio.Task[None]] = set()
        self._unconfirmed = 0

    def begin(self) -> None:
        """Note that a turn begins: what it takes was received now."""
        self._since_ms = self._meter.start()
        self._acks.begin()

    def take(
        self, connection: Connection, request: Request, serialize_type: int, frame: bytes
    ) -> bool:
        """Take a decoded request; return False if its handler must.

        Args:
            frame: The frame that it was decoded from.
        """
        is_pop = request.code == RequestCode.POP_MESSAGE
        if request.oneway or self._unconfirmed > UNCONFIRMED_MAX:
            return False
        if is_pop and (
            connection in self._asked
            or len(self._asked) >= POPS_MAX
            or request.fields.get("order", "false") != "false"
            or connection.unsent_bytes > UNSENT_BYTES_MAX
        ):
            return False
        request.peer = connection
        try:
            if self._access is not None:
                self._access(request)
            if is_pop:
                wanted = self._processor.admit(request)
                if wanted.subscription.filter is not None:
                    return False  # it may read and evaluate much
                self._asked[connection] = request, serialize_type, wanted
            else:
                self._acks.take(connection, request, serialize_type, frame)
        except Exception as error:
            self._refuse(connection, request, serialize_type, error)
        return True

    def take_alike(self, connection: Connection) -> bool:
        """Take frames that repeat a connection's last acknowledgement; return whether it did."""
        return self._unconfirmed <= UNCONFIRMED_MAX and self._acks.take_alike(connection)

    # -- the end of a turn ----------------------------------------------------------------------

    def finish(self) -> None:
        """Append the records of the turn, and answer, now or when they are confirmed."""
        acks, pops = self._acks.take_all(), self._collect()
        if not acks.answers and not acks.entries and not pops:
            return
        refused, pops = self._put(acks, pops)
        if self._confirms and len(refused) < len(acks.entries) + len(pops):
            task = asyncio.create_task(self._answer_confirmed(acks, pops, refused, self._since_ms))
            self._waiting.add(task)
            task.add_done_callback(self._waiting.discard)
        else:
            self._answer(acks, pops, refused, self._since_ms)

    def _collect(self) -> list[TakenPop]:
        """Read the messages of the turn's pops; those without messages go to their handler."""
        asked, self._asked = self._asked, {}
        found = []
        for connection, (request, serialize_type, wanted) in asked.items():
            try:
                popped = self._processor.collect(wanted)
            except Exception as error:
                self._refuse(connection, request, serialize_type, error)
                continue
            if popped.count:
                found.append(TakenPop(connection, request, serialize_type, wanted, popped))
            else:
                connection.dispatch(request, serialize_type)
        return found

    def _put(
        self, acks: TakenAcks, pops: list[TakenPop]
    ) -> tuple[dict[int, RequestError], list[TakenPop]]:
        """Append acknowledgements, and the checkpoints of pops: all of these or none.

        Returns:
            Why acknowledgements were refused, by the index of their entry; the pops whose
            checkpoints are stored. The others go to their handler.
        """
        first, log_offset = len(acks.entries), self._revive_log.end
        try:
            checkpoints = [
                entry
                for pop in pops
                for entry in self._processor.checkpoints(pop.wanted, pop.popped)
            ]
            refused = self._revive_log.put_each(
                [*acks.entries, *checkpoints], together=(first, len(checkpoints))
            )
        except Exception as error:
            self._failed("the records of a turn failed", exc_info=error)
            fault = RequestError(ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}")
            refused = dict.fromkeys(range(first + len(pops)), fault)
        acks_refused = {index: error for index, error in refused.items() if index < first}
        if len(acks_refused) == len(refused):
            for pop in pops:
                self._processor.stored(pop.popped, log_offset)
            return acks_refused, pops
        for pop in pops:
            self._processor.give_back(pop.popped)
        for pop in pops:
            pop.connection.dispatch(pop.request, pop.serialize_type)
        return acks_refused, []

    async def _answer_confirmed(
        self,
        acks: TakenAcks,
        pops: list[TakenPop],
        refused: dict[int, RequestError],
        since_ms: int,
    ) -> None:
        pieces = [piece for pop in pops for piece in pop.popped.pieces]
        popped = sum(1 + len(piece.found.data) // 1_024 for piece in pieces)
        count, unconfirmed = acks.count + popped, None
        self._unconfirmed += count
        try:
            await self._revive_log.confirm("the request was carried out")
        except RequestError as error:
            unconfirmed = error
        finally:
            self._unconfirmed -= count
        self._answer(acks, pops, refused, since_ms, unconfirmed)

    def _answer(
        self,
        acks: TakenAcks,
        pops: list[TakenPop],
        refused: Mapping[int, RequestError],
        since_ms: int,
        unconfirmed: RequestError | None = None,
    ) -> None:
        """Write the answers, once to each connection.

        Args:
            unconfirmed: Error of what was stored; None: it is confirmed.
        """
        frames: dict[Connection, list[bytes | memoryview]] = {}
        counts: Counter[tuple[int, int]] = Counter()
        for connection, codes, parts in acks.frames(refused, unconfirmed):
            frames[connection] = parts
            for code, count in codes.items():
                counts[RequestCode.ACK_MESSAGE, code] += count
        for pop in pops:
            answer = self._answer_to(pop, unconfirmed)
            counts[RequestCode.POP_MESSAGE, answer.code] += 1
            parts = encode_answer(pop.request, answer, pop.serialize_type)
            frames.setdefault(pop.connection, []).extend(parts)
        for connection, parts in frames.items():
            if parts:
                connection.write(b"".join(parts))
        for (asked, code), count in counts.items():
            self._meter.together(asked, code, count, since_ms)

    def _answer_to(self, pop: TakenPop, unconfirmed: RequestError | None) -> Response:
        if unconfirmed is not None:
            return Response(unconfirmed.code, unconfirmed.remark)
        try:
            return self._processor.found(pop.wanted, pop.popped)
        except Exception as error:
            return refusal(error, pop.request, self._failed)

    def _refuse(
        self, connection: Connection, request: Request, serialize_type: int, error: Exception
    ) -> None:
        answer = refusal(error, request, self._failed)
        self._meter.together(request.code, answer.code, 1, self._since_ms)
        connection.respond(request, answer, serialize_type)

    async def drain(self) -> None:
        """Return when every answer is sent."""
        while self._waiting:
            await asyncio.wait(self._waiting)
