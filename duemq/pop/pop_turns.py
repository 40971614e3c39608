"""Pops (200050) and acknowledgements (200051) of all connections in one turn of the event loop.

    pops              --read--> checkpoints --+
    acknowledgements  ------------> records --+--one append--> revive log --> one write each

Handlers process the following requests one by one: pops that find no messages, orderly pops,
one-way requests, and requests beyond the limits of a turn.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import numpy as np

from duemq.filters import SQL92
from duemq.net.connection import Connection
from duemq.net.dispatcher import AccessCheck, encode_numbered, refusal
from duemq.net.layout import JSON_TYPE
from duemq.net.meters import RpcMeter
from duemq.net.notices import Notices
from duemq.pop.ack_turns import AckTurns, TurnAcks
from duemq.pop.acks import AckProcessor
from duemq.pop.kernels.matching_frames import read_matching
from duemq.pop.pop import PopProcessor, PopRequest, PopResult
from duemq.pop.revive_log import ReviveLog
from duemq.pop.templates.frame_templates import ConnectionTemplates
from duemq.pop.templates.pop_templates import COLUMNS, PopTemplate
from duemq_common.codes import RequestCode, ResponseCode
from duemq_common.errors import RequestError
from duemq_common.request import Request, Response

POPS_MAX: Final = 32  # per turn
UNSENT_BYTES_MAX: Final = 1 << 18  # per connection; above, its pops go to their handler
UNCONFIRMED_MAX: Final = 16_384  # unconfirmed acknowledgements, and KiB of unconfirmed messages


@dataclass(slots=True)  # not frozen: creation would take four times as long
class TurnPop:
    """A pop of a turn.

    Attributes:
        popped: Its messages, which are read at the end of the turn.
        decoded: The request that the codec decoded; None: the frame matched `template`.
        born_ms: Birth time in the frame, if it matched.
    """

    connection: Connection
    opaque: int
    serialize_type: int
    arguments: PopRequest
    decoded: Request | None = None
    template: PopTemplate | None = None
    born_ms: int = 0
    popped: PopResult = field(init=False)

    @property
    def request(self) -> Request:
        """The request, as the codec decodes it."""
        if self.decoded is None:
            assert self.template is not None
            self.decoded = self.template.request_of(
                self.opaque, self.born_ms, self.arguments.target.queue_id
            )
        return self.decoded


class PopTurns:
    """Handler of the pops and acknowledgements of a turn (`BatchedRequests`).

    Args:
        access: Checks each request; None: clients have all permissions.
        is_ready: Returns whether kernels can be called.
        confirms: Whether responses wait for the disk or for replicas.
    """

    codes: Final[frozenset[int]] = frozenset({RequestCode.POP_MESSAGE, RequestCode.ACK_MESSAGE})

    def __init__(
        self,
        pops: PopProcessor,
        acks: AckProcessor,
        revive_log: ReviveLog,
        failed: Notices,
        meter: RpcMeter,
        *,
        access: AccessCheck | None,
        is_ready: Callable[[], bool],
        confirms: bool,
    ) -> None:
        self._processor, self._revive_log = pops, revive_log
        self._failed, self._meter, self._access = failed, meter, access
        self._confirms = confirms
        # With accounts, every request has its own signature.
        self._uses_templates: Callable[[], bool] = lambda: access is None and is_ready()
        self._acks = AckTurns(acks, self._uses_templates)
        self._templates = ConnectionTemplates[PopTemplate]()
        self._numbers = np.zeros((1, COLUMNS), np.int64)
        self._frame_ends = np.zeros(1, np.int64)
        self._requested: dict[Connection, TurnPop] = {}
        self._since_ms = 0
        self._waiting: set[asyncio.Task[None]] = set()
        self._unconfirmed = 0

    def begin(self) -> None:
        """Begin a turn; its requests are received now."""
        self._since_ms = self._meter.start()
        self._acks.begin()

    def take(
        self, connection: Connection, request: Request, serialize_type: int, frame: bytes
    ) -> bool:
        """Add a decoded request; return False if it must go to its handler instead.

        Args:
            frame: The frame that the request was decoded from.
        """
        is_pop = request.code == RequestCode.POP_MESSAGE
        if request.oneway or self._unconfirmed > UNCONFIRMED_MAX:
            return False
        if is_pop and (
            not self._has_room(connection)
            or request.fields.get("order", "false") != "false"
            or request.fields.get("expType") == SQL92  # may read and evaluate many messages
        ):
            return False
        request.peer = connection
        try:
            if self._access is not None:
                self._access(request)
            if is_pop:
                arguments = self._processor.admit(request)
                pop = TurnPop(connection, request.opaque, serialize_type, arguments, request)
                self._add_template(pop, frame)
                self._requested[connection] = pop
            else:
                self._acks.take(connection, request, serialize_type, frame)
        except Exception as error:
            self._refuse(connection, request, serialize_type, error)
        return True

    def _has_room(self, connection: Connection) -> bool:
        """Return whether a pop of a connection can be added to this turn."""
        return (
            connection not in self._requested
            and len(self._requested) < POPS_MAX
            and connection.unsent_bytes <= UNSENT_BYTES_MAX
        )

    def _add_template(self, pop: TurnPop, frame: bytes) -> None:
        if pop.serialize_type != JSON_TYPE or not self._uses_templates():
            return
        if self._templates.accepts(pop.connection):
            template = PopTemplate.of(frame, pop.request, pop.arguments)
            if template is not None:
                self._templates.add(pop.connection, template)

    def take_matching(self, connection: Connection) -> bool:
        """Consume leading frames that match a template; return whether there were any."""
        if self._unconfirmed > UNCONFIRMED_MAX:
            return False
        has_acks = self._acks.take_matching(connection)
        if has_acks and not len(connection.received):
            return True
        return self._take_matching_pop(connection) or has_acks

    def _take_matching_pop(self, connection: Connection) -> bool:
        """Consume the next frame if it matches a pop; return whether it did."""
        cache = self._templates.of(connection)
        if cache is None or not self._has_room(connection):
            return False
        received, numbers = connection.received, self._numbers
        for index, template in enumerate(cache.templates):
            if read_matching(
                received.data,
                received.start,
                received.end,
                template.parts,
                numbers,
                self._frame_ends,
            ):
                cache.matched(index)
                opaque, born_ms, queue_id = numbers[0].tolist()
                received.take(int(self._frame_ends[0]))
                self._admit_matching(connection, template, opaque, born_ms, queue_id)
                return True
        return False

    def _admit_matching(
        self,
        connection: Connection,
        template: PopTemplate,
        opaque: int,
        born_ms: int,
        queue_id: int,
    ) -> None:
        queue_id = template.queue_id(queue_id)
        try:
            arguments = self._processor.admit_like(
                template.arguments, queue_id, template.poll_ms, born_ms
            )
        except Exception as error:
            request = template.request_of(opaque, born_ms, queue_id)
            self._refuse(connection, request, JSON_TYPE, error)
            return
        self._requested[connection] = TurnPop(
            connection, opaque, JSON_TYPE, arguments, template=template, born_ms=born_ms
        )

    # -- the end of a turn ----------------------------------------------------------------------

    def finish(self) -> None:
        """Append the records of the turn, and respond, now or when they are confirmed."""
        if self._acks.is_empty and not self._requested:
            return
        acks, pops = self._acks.take_all(), self._collect()
        if not acks.by_connection and not acks.entries and not pops:
            return
        refused, pops = self._put(acks, pops)
        if self._confirms and len(refused) < len(acks.entries) + len(pops):
            task = asyncio.create_task(self._respond_confirmed(acks, pops, refused, self._since_ms))
            self._waiting.add(task)
            task.add_done_callback(self._waiting.discard)
        else:
            self._respond(acks, pops, refused, self._since_ms)

    def _collect(self) -> list[TurnPop]:
        """Read the messages of the turn's pops; those without messages go to their handler."""
        requested, self._requested = self._requested, {}
        pops = []
        for pop in requested.values():
            try:
                pop.popped = self._processor.collect(pop.arguments)
            except Exception as error:
                self._refuse(pop.connection, pop.request, pop.serialize_type, error)
                continue
            if pop.popped.count:
                pops.append(pop)
            else:
                self._dispatch(pop)
        return pops

    def _dispatch(self, pop: TurnPop) -> None:
        """Pass a pop to its handler, which does not check and admit it again."""
        handler = partial(self._processor.pop_admitted, arguments=pop.arguments)
        pop.connection.dispatch(pop.request, pop.serialize_type, handler)

    def _put(
        self, acks: TurnAcks, pops: list[TurnPop]
    ) -> tuple[dict[int, RequestError], list[TurnPop]]:
        """Append acknowledgements, and the checkpoints of pops: all of these or none.

        Returns:
            Errors of refused acknowledgements, by index of their entry, and the pops with stored
            checkpoints. All other pops go to their handler.
        """
        first, log_offset = len(acks.entries), self._revive_log.end
        try:
            checkpoints = [
                entry
                for pop in pops
                for entry in self._processor.checkpoints(pop.arguments, pop.popped)
            ]
            refused = self._revive_log.put_each(
                [*acks.entries, *checkpoints],
                together=(first, len(checkpoints)),
                are_put_again=True,
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
            self._processor.undo(pop.arguments, pop.popped)
        for pop in pops:
            self._dispatch(pop)
        return acks_refused, []

    async def _respond_confirmed(
        self,
        acks: TurnAcks,
        pops: list[TurnPop],
        refused: dict[int, RequestError],
        since_ms: int,
    ) -> None:
        results = [result for pop in pops for result in pop.popped.results]
        popped = sum(1 + len(result.messages.data) // 1_024 for result in results)
        count, unconfirmed = acks.count + popped, None
        self._unconfirmed += count
        try:
            await self._revive_log.confirm("the request was carried out")
        except RequestError as error:
            unconfirmed = error
        finally:
            self._unconfirmed -= count
        self._respond(acks, pops, refused, since_ms, unconfirmed)

    def _respond(
        self,
        acks: TurnAcks,
        pops: list[TurnPop],
        refused: Mapping[int, RequestError],
        since_ms: int,
        unconfirmed: RequestError | None = None,
    ) -> None:
        """Write the responses, once to each connection.

        Args:
            unconfirmed: Error of records that were stored; None: they are confirmed.
        """
        ack_codes, pop_codes = Counter[int](), Counter[int]()
        buffers = dict(acks.responses(refused, unconfirmed, ack_codes))
        for pop in pops:
            response = self._response_to(pop, unconfirmed)
            pop_codes[response.code] += 1
            parts = encode_numbered(response, pop.opaque, pop.serialize_type)
            existing = buffers.get(pop.connection)
            if existing is None:
                buffers[pop.connection] = parts
            else:
                existing += parts
        for connection, parts in buffers.items():
            if parts:
                connection.write(b"".join(parts))
        for request_code, codes in (
            (RequestCode.ACK_MESSAGE, ack_codes),
            (RequestCode.POP_MESSAGE, pop_codes),
        ):
            for code, count in codes.items():
                self._meter.together(request_code, code, count, since_ms)

    def _response_to(self, pop: TurnPop, unconfirmed: RequestError | None) -> Response:
        if unconfirmed is not None:
            return Response(unconfirmed.code, unconfirmed.remark)
        try:
            return self._processor.popped_response(pop.arguments, pop.popped)
        except Exception as error:
            return refusal(error, pop.request, self._failed)

    def _refuse(
        self, connection: Connection, request: Request, serialize_type: int, error: Exception
    ) -> None:
        response = refusal(error, request, self._failed)
        self._meter.together(request.code, response.code, 1, self._since_ms)
        connection.respond(request, response, serialize_type)

    async def drain(self) -> None:
        """Return when every response is sent."""
        while self._waiting:
            await asyncio.wait(self._waiting)
