"""Bulk decisions: search pending messages (9018), decide on the hits of a search (9019).

    SEARCH_PENDING   header: topic, key, from_ms, until_ms, cursor; each may be missing
        response     0 + `PendingHits`
    DECIDE_HITS      header: topic; body: `HitDecision`
        response     0 + `HitVerdicts`

A hit names its record by log offset, so the broker decides on it without a search for its key. The
broker searches and decides in slices of about 1 ms, and yields to deliveries between them, so a
slice limits the lateness that a bulk decision adds. It responds when disk and
replicas, as configured, have confirmed the records. A client can repeat both requests: a message
that is decided already is not decided again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
import numpy.typing as npt

from delayed_delivery.pending import (
    HitQuery,
    Offsets,
    PendingMessages,
    PendingPiece,
    Verdict,
)
from delayed_delivery.pending_search import piece_of
from duemq.messages.decide import DecideProcessor, DecisionJob, DecisionRule, Name, by_id
from duemq.messages.decision_results import verdict_of
from duemq.messages.decision_turns import SliceSize
from duemq.net import fields
from duemq.net.decisions import (
    ACTIONS,
    PAGE_HITS_MAX,
    TIME_MS_MAX,
    HitDecision,
    HitVerdicts,
    PendingHits,
)
from duemq_common.codes import RequestCode, ResponseCode
from duemq_common.errors import RequestError, StoreError
from duemq_common.request import Request, RequestHandler, Response
from message_store.index.key_search import are_owned, query_of
from message_store.replication.acknowledgement import not_confirmed

if TYPE_CHECKING:  # the commands start without the store
    from message_store.store import MessageStore

PIECES_MAX: Final = 32  # pieces of one page
SEARCH: Final = "search"  # kind of work of `SliceSize`, like the actions
Mask = npt.NDArray[np.bool_]
NO_PORTS: Final = "this broker delivers no messages, so it does not know which are pending"


class PendingHitsProcessor:
    """Handler of SEARCH_PENDING (9018) and DECIDE_HITS (9019).

    Args:
        ports: Returns the components that own pending messages, timers first.
        decisions: Processor of single decisions, whose order this one shares.
    """

    def __init__(
        self,
        store: MessageStore,
        ports: Callable[[], Sequence[PendingMessages]],
        decisions: DecideProcessor,
    ) -> None:
        self._store, self._ports, self._decisions = store, ports, decisions

    def handlers(self) -> dict[int, RequestHandler]:
        return {RequestCode.SEARCH_PENDING: self.search, RequestCode.DECIDE_HITS: self.decide}

    # -- search ---------------------------------------------------------------------------------

    async def search(self, request: Request) -> Response:
        """Return the page of hits at the cursor of the request.

        Levels come before timers, because a migration moves messages from levels to timers.
        """
        query = HitQuery(
            topic=_topic(request),
            from_ms=fields.long(request, "from_ms", 0),
            until_ms=fields.long(request, "until_ms", TIME_MS_MAX),
            count_max=PAGE_HITS_MAX,
        )
        key, ports = request.fields.get("key", ""), list(reversed(self._ports()))
        number, _, cursor = (request.fields.get("cursor", "") or "0:").partition(":")
        try:
            if not ports:
                raise StoreError(NO_PORTS)
            page = await self._page(ports, query, key, int(number), cursor)
        except (ValueError, IndexError) as error:
            raise RequestError(ResponseCode.INVALID_PARAMETER, f"cursor: {error}") from error
        except StoreError as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, str(error)) from error
        return Response(body=msgspec.msgpack.encode(page))

    async def _page(
        self,
        ports: Sequence[PendingMessages],
        query: HitQuery,
        key: str,
        number: int,
        cursor: str,
    ) -> PendingHits:
        """Return the hits of the next pieces, those of one port.

        The end of the log is that before the pieces: what is sent meanwhile is later.
        """
        parts, left, log_end = list[PendingPiece](), query.count_max, int(self._store.max_offset)
        turns = self._decisions.turns
        size = SliceSize(turns.sizes, SEARCH)
        for _ in range(PIECES_MAX):
            port = ports[number]
            if key:
                part = await self._by_key(port, query, key, cursor)
            else:
                limited = msgspec.structs.replace(query, count_max=min(size.count, left))
                with size.measured():
                    part = port.search(limited, cursor)
            await turns.others_first()
            parts.append(part)
            left -= len(part.keys)
            is_ended = part.cursor is None
            number, cursor = (number + 1, "") if part.cursor is None else (number, part.cursor)
            has_hits = left < query.count_max
            # the client compares pages, so hits that may be returned again end theirs
            is_whole = has_hits and (is_ended or part.may_repeat or bool(key))
            if is_whole or left <= 0 or part.damage or number == len(ports):
                break
        following = f"{number}:{cursor}" if number < len(ports) else None
        return self._hits(joined(parts), following, log_end)

    async def _by_key(
        self, port: PendingMessages, query: HitQuery, key: str, cursor: str
    ) -> PendingPiece:
        """Return the next messages with a key, in order of their log offsets."""
        matches = await port.by_key(query.topic, [key], unique=False)
        matches = matches.within(query.from_ms, query.until_ms)
        order = np.argsort(matches.offsets, kind="stable")
        order = order[matches.offsets[order] > int(cursor or -1)]
        has_more, order = order.size > query.count_max, order[: query.count_max]
        following = str(matches.offsets[order[-1]]) if has_more else None
        parts, first = list[PendingPiece](), 0
        size = SliceSize(self._decisions.turns.sizes, SEARCH)
        while first < order.size or not parts:
            rows = order[first : first + size.count]
            first += size.count
            with size.measured():
                offsets, due_ms = matches.offsets[rows], matches.due_ms[rows]
                parts.append(piece_of(self._store, query, offsets, due_ms, following))
            await self._decisions.turns.others_first()
        return joined(parts)

    def _hits(self, part: PendingPiece, cursor: str | None, log_end: int) -> PendingHits:
        is_named = (part.topic_indexes >= 0) & np.fromiter(map(bool, part.keys), np.bool_)
        offsets, due_ms, keys = part.offsets, part.due_ms, part.keys
        topic_indexes = part.topic_indexes
        if not is_named.all():
            offsets, due_ms = offsets[is_named], due_ms[is_named]
            topic_indexes = topic_indexes[is_named]
            keys = [key for key, named in zip(keys, is_named.tolist(), strict=True) if named]
        present, indexes = np.unique(topic_indexes, return_inverse=True)
        return PendingHits(
            topics=[self._store.topics.name(index) for index in present.tolist()],
            topic_indexes=indexes.tolist(),
            keys=keys,
            offsets=offsets.tolist(),
            due_ms=due_ms.tolist(),
            cursor=cursor,
            may_repeat=part.may_repeat,
            now_ms=self._decisions.clock.now_ms(),
            log_end=log_end,
            nameless=int(np.count_nonzero(~is_named)),
            damage=part.damage,
        )

    # -- decide ---------------------------------------------------------------------------------

    async def decide(self, request: Request) -> Response:
        """Decide on the hits of a page.

        Raises:
            RequestError: The request is malformed, or the decisions were not confirmed in time.
        """
        command = _parse(request)
        run = _HitRun(self._store, self._decisions, command, _topic(request))
        await run.by_offset(self._ports())
        await run.by_key()
        done = int(np.count_nonzero(run.verdicts == Verdict.DONE))
        if run.log_end and (missing := await self._store.wait_confirmed(run.log_end)):
            raise not_confirmed(f"{done} messages were decided on", missing)
        result = HitVerdicts(verdicts=run.verdicts.astype(np.uint8).tobytes(), remarks=run.remarks)
        return Response(body=msgspec.msgpack.encode(result))


class _HitRun:
    """Execution of one request.

    Attributes:
        verdicts: (n,) i1, `Verdict` of each hit.
        remarks: By hit.
        log_end: Log offset up to which the log must be confirmed before the response.
    """

    def __init__(
        self, store: MessageStore, owner: DecideProcessor, command: HitDecision, topic: str
    ) -> None:
        self._store, self._owner, self._command, self._topic = store, owner, command, topic
        self._due_ms = command.deliver_ms or 0
        self._offsets = np.array(command.offsets, np.int64)
        self._query = query_of(topic, command.keys)
        self._is_decided = np.zeros(self._offsets.size, np.bool_)
        self.verdicts = np.full(self._offsets.size, Verdict.UNKNOWN, np.int8)
        self.remarks: dict[int, str] = {}
        self.log_end = 0

    async def by_offset(self, ports: Sequence[PendingMessages]) -> None:
        """Decide on the hits whose record at the log offset is theirs, and pending."""
        if self._command.dry_run or not ports:
            return
        firsts = np.zeros(self._offsets.size, np.bool_)  # a record is decided once
        firsts[np.unique(self._offsets, return_index=True)[1]] = True
        first = 0
        size = SliceSize(self._owner.turns.sizes, self._command.action)
        while first < self._offsets.size:
            async with self._owner.turns:
                part = slice(first, first + size.count)
                with size.measured():
                    last_port = self._apply_in_turn(ports, self._matching(part, firsts))
                ports = [last_port, *(port for port in ports if port is not last_port)]
                first = part.stop

    def _apply_in_turn(self, ports: Sequence[PendingMessages], indexes: Offsets) -> PendingMessages:
        """Decide on the hits of a slice; return the component of the last ones.

        It probably has the next ones, too, and then the other components are not searched.
        """
        last_port = ports[0]
        for port in ports:
            if not indexes.size:
                break
            last_port, indexes = port, self._apply(port, indexes)
        return last_port

    def _matching(self, part: slice, firsts: Mask) -> Offsets:
        """Return the hits of a slice whose record has their key and the requested topic.

        Args:
            firsts: (n,) which hits are the first ones with their log offset.
        """
        is_meant = are_owned(self._store, self._offsets[part], self._query, part.start)
        is_meant &= firsts[part]
        indexes: Offsets = np.flatnonzero(is_meant).astype(np.int64)
        indexes += part.start
        return indexes

    def _apply(self, port: PendingMessages, indexes: Offsets) -> Offsets:
        """Decide on records; return the hits whose record is not pending in this component."""
        offsets = self._offsets[indexes]
        decided = self._owner.apply(port, self._command.action, offsets, self._due_ms)
        is_final: Mask = (decided.verdicts == Verdict.DONE) | (decided.verdicts == Verdict.REFUSED)
        final = indexes[is_final]
        self.verdicts[final], self._is_decided[final] = decided.verdicts[is_final], True
        self.remarks |= {int(indexes[index]): text for index, text in decided.remarks.items()}
        self.log_end = max(self.log_end, decided.log_end)
        return indexes[~is_final]

    async def by_key(self) -> None:
        """Decide on the other hits: moved, no longer pending, or unknown here."""
        left = np.flatnonzero(~self._is_decided).tolist()
        if not left:
            return
        command = self._command
        texts = {index: command.keys[index].decode("utf-8", "surrogatepass") for index in left}
        names = [Name(self._topic, text) for text in dict.fromkeys(texts.values())]
        rule = DecisionRule(
            command.action, self._due_ms, command.from_ms, command.until_ms, command.dry_run
        )
        job = DecisionJob(self._owner, rule)
        try:
            results = {result.name: result for result in await job.run(by_id, names)}
        except StoreError as error:
            self.verdicts[left] = Verdict.REFUSED
            self.remarks |= dict.fromkeys(left, str(error))
        else:
            for index, name in texts.items():
                self.verdicts[index] = verdict_of(results[name])
                if results[name].remark:
                    self.remarks[index] = results[name].remark
        self.log_end = max(self.log_end, job.log_end)


def joined(parts: Sequence[PendingPiece]) -> PendingPiece:
    """Return pieces of one search as one, with the cursor of the last one."""
    if len(parts) == 1:
        return parts[0]
    return PendingPiece(
        offsets=np.concatenate([part.offsets for part in parts]),
        due_ms=np.concatenate([part.due_ms for part in parts]),
        topic_indexes=np.concatenate([part.topic_indexes for part in parts]),
        keys=[key for part in parts for key in part.keys],
        cursor=parts[-1].cursor,
        may_repeat=any(part.may_repeat for part in parts),
        damage=[text for part in parts for text in part.damage],
    )


def _topic(request: Request) -> str:
    """Return the topic of a request; empty without one.

    Raises:
        RequestError: The field is present, but empty: it would be checked as a topic's permission.
    """
    topic = request.fields.get("topic")
    if topic == "":
        raise RequestError(ResponseCode.INVALID_PARAMETER, "topic is empty: leave the field out")
    return topic or ""


def _parse(request: Request) -> HitDecision:
    try:
        command = msgspec.msgpack.decode(request.body, type=HitDecision)
        if not b"".join(command.keys).isascii():
            for key in command.keys:
                key.decode("utf-8", "surrogatepass")
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise _illegal(f"the body is not a decision about hits: {error}") from error
    count = len(command.keys)
    if count > PAGE_HITS_MAX:
        raise _illegal(f"{count} hits in one request; the maximum is {PAGE_HITS_MAX}")
    if count != len(command.offsets) or not all(command.keys):
        raise _illegal("each hit needs a key and a log offset")
    if command.offsets and (min(command.offsets) < 0 or max(command.offsets) >= 1 << 62):
        raise _illegal("a log offset is out of range")
    if command.action not in ACTIONS.values():
        raise _illegal("the action is one of: " + ", ".join(ACTIONS.values()))
    due_ms = -1 if command.deliver_ms is None else command.deliver_ms
    if command.action == "move" and not 0 <= due_ms < TIME_MS_MAX:
        raise _illegal("a move needs deliver_ms, a time in ms since 1970")
    return command


def _illegal(reason: str) -> RequestError:
    return RequestError(ResponseCode.MESSAGE_ILLEGAL, reason)
