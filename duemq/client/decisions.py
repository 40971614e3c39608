"""Decisions about pending messages of a cluster: cancel, move, fire.

Ids and keys go to every broker, since each may have the message; the result with the highest
priority (`RANKS`) counts. A handle goes to the broker that issued it. Apache's brokers can cancel a
timer by its recall handle only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec

from duemq.client.bulk_decisions import PendingSearch, Progress, SearchDecision
from duemq.client.errors import Refused, Unreachable, Unsupported
from duemq.client.message import MILLISECOND, milliseconds
from duemq.client.role import ClientRole
from duemq.net.decisions import (
    ACTIONS,
    NAMES_MAX,
    TIME_MS_MAX,
    DecisionRequest,
    DecisionResponse,
    DecisionResult,
)
from duemq_common.codes import RequestCode, ResponseCode
from duemq_common.recall_handle import HandleError, decode_handle
from duemq_common.request import bytes_of

CALL_TIMEOUT_S: Final = 60.0
CODES: Final = {action: code for code, action in ACTIONS.items()}
RANKS: Final = ("unknown", "already delivered", "done", "refused")  # in ascending priority


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageSelection:
    """Selection of pending messages.

    Attributes:
        ids: Unique keys or offset message ids.
        keys: Values of KEYS.
        handles: Recall handles.
        topic: Topic of ids and keys; alone, it selects all pending messages of the topic, which
            are decided on page by page.
        from_ms, until_ms: Only messages due in [from_ms, until_ms).
    """

    ids: Sequence[str] = ()
    keys: Sequence[str] = ()
    handles: Sequence[str] = ()
    topic: str = ""
    from_ms: int = 0
    until_ms: int = TIME_MS_MAX

    def requests(self, **more: Any) -> Iterable[DecisionRequest]:
        """Yield requests of at most NAMES_MAX names."""
        left = {"ids": list(self.ids), "keys": list(self.keys), "handles": list(self.handles)}
        first = True
        while first or any(left.values()):
            request = DecisionRequest(
                topic=self.topic, from_ms=self.from_ms, until_ms=self.until_ms, **more
            )
            room, first = NAMES_MAX, False
            for kind, names in left.items():
                setattr(request, kind, names[:room])
                left[kind] = names[room:]
                room -= len(names[:room])
            yield request


class PendingDecisions(ClientRole):
    """Cancels, moves and fires pending messages; an async context manager."""

    async def cancel(self, *, dry_run: bool = False, **selection: Any) -> list[DecisionResult]:
        """Cancel messages; `selection` are the attributes of `MessageSelection`.

        The results are those of the brokers that respond. If another broker may have the messages,
        the remark of a result says why it is not known.

        Raises:
            Refused: A broker refused the request as a whole.
            Unreachable: No broker responds.
            Unsupported: No broker is a DueMQ broker, and ids, keys or a topic are given.
        """
        return await self.decide("cancel", MessageSelection(**selection), dry_run=dry_run)

    async def move(
        self,
        to: datetime | timedelta | None = None,
        *,
        deliver_ms: int | None = None,
        delay_ms: int | None = None,
        dry_run: bool = False,
        **selection: Any,
    ) -> list[DecisionResult]:
        """Reschedule messages.

        Args:
            to: New due time, or delay from now.
            deliver_ms, delay_ms: The same in milliseconds since the epoch, and from now.
        Raises:
            ValueError: `to` has no time zone.
        """
        if isinstance(to, datetime):
            deliver_ms = milliseconds(to)
        elif to is not None:
            delay_ms = -(-to // MILLISECOND)
        return await self.decide(
            "move",
            MessageSelection(**selection),
            dry_run=dry_run,
            deliver_ms=deliver_ms,
            delay_ms=delay_ms,
        )

    async def fire(self, *, dry_run: bool = False, **selection: Any) -> list[DecisionResult]:
        """Deliver messages now."""
        return await self.decide("fire", MessageSelection(**selection), dry_run=dry_run)

    async def decide(
        self,
        action: str,
        selection: MessageSelection,
        *,
        deliver_ms: int | None = None,
        delay_ms: int | None = None,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> list[DecisionResult]:
        """Decide on the selected messages; return one result for each name, in order.

        Args:
            deliver_ms, delay_ms: As in `move`.
            progress: Called while all messages of a topic are decided on.
        """
        if selection.topic and not (selection.ids or selection.keys or selection.handles):
            search = PendingSearch(
                topic=selection.topic, from_ms=selection.from_ms, until_ms=selection.until_ms
            )
            decision = SearchDecision(
                client=self.client,
                action=action,
                search=search,
                deliver_ms=deliver_ms,
                delay_ms=delay_ms,
                dry_run=dry_run,
                progress=progress,
            )
            return [await decision.run()]
        more = {"deliver_ms": deliver_ms, "delay_ms": delay_ms, "dry_run": dry_run}
        results: list[DecisionResult] = []
        if selection.ids or selection.keys or not selection.handles:
            addresses = [address for _, address in await self.client.masters()]
            for request in replace(selection, handles=()).requests(**more):
                results += await self._fetch_all(addresses, action, request)
        by_broker: dict[str, list[int]] = {}
        for index, handle in enumerate(selection.handles):
            by_broker.setdefault(_issuer(handle), []).append(index)
        decided: dict[int, DecisionResult] = {}
        for name, indexes in by_broker.items():
            handles = [selection.handles[index] for index in indexes]
            of_broker: list[DecisionResult] = []
            for request in replace(selection, ids=(), keys=(), handles=handles).requests(**more):
                of_broker += await self._fetch_at(name, action, request)
            decided |= zip(indexes, of_broker, strict=True)
        return results + [decided[index] for index in range(len(selection.handles))]

    async def _fetch_all(
        self, addresses: Sequence[str], action: str, request: DecisionRequest
    ) -> list[DecisionResult]:
        """Return the combined results of all brokers.

        Raises:
            ClientError: No broker has results, or one refused the request.
        """
        responses = await asyncio.gather(
            *(self._fetch(address, action, request) for address in addresses),
            return_exceptions=True,
        )
        failures = [one for one in responses if isinstance(one, BaseException)]
        for failure in failures:
            is_partial = isinstance(failure, Unreachable | Unsupported)
            if not is_partial or len(failures) == len(addresses):
                raise failure
        by_broker = [one for one in responses if not isinstance(one, BaseException)]
        results = [combined(of_one) for of_one in zip(*by_broker, strict=True)]
        for result in results:
            if result.verdict == "unknown" or result.name in request.keys:
                result.remark = "; ".join([*filter(None, [result.remark]), *map(str, failures)])
        return results

    async def _fetch_at(
        self, broker_name: str, action: str, request: DecisionRequest
    ) -> list[DecisionResult]:
        """Return the results of one broker; any broker has them for a name that none has."""
        address = await self.client.master(broker_name)
        if not address:
            (_, address), *_ = await self.client.masters()
        try:
            return await self._fetch(address, action, request)
        except (Refused, Unreachable) as error:
            if isinstance(error, Refused) and error.code != ResponseCode.SLAVE_NOT_AVAILABLE:
                raise
            following = await self.client.master(broker_name, refresh=True)
            if following in ("", address):
                raise
        return await self._fetch(following, action, request)

    async def _fetch(
        self, address: str, action: str, request: DecisionRequest
    ) -> list[DecisionResult]:
        code, body = CODES[action], msgspec.json.encode(request)
        response = await self.client.call(address, code, {}, body, timeout_s=CALL_TIMEOUT_S)
        if response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            only_handles = request.handles and not (request.ids or request.keys)
            if action == "cancel" and only_handles and not request.dry_run:
                return [await self._recall(address, handle) for handle in request.handles]
            raise Unsupported(
                f"{address} is not a DueMQ broker; if it is a name server, give it as namesrv. An "
                "Apache broker cancels a timer by its recall handle only"
            )
        if response.code != ResponseCode.SUCCESS:
            raise self.client.refusal(response, address, code)
        return msgspec.json.decode(bytes_of(response), type=DecisionResponse).results

    async def _recall(self, address: str, handle: str) -> DecisionResult:
        """Cancel a timer at an Apache broker, which does not say whether it was pending."""
        try:
            topic = decode_handle(handle).topic
        except HandleError as error:
            return DecisionResult(handle, "refused", refused=1, remark=str(error))
        fields = {"topic": topic, "recallHandle": handle, "producerGroup": "DUEMQ_PRODUCER"}
        response = await self.client.call(address, RequestCode.RECALL_MESSAGE, fields)
        if response.code == ResponseCode.SUCCESS:
            return DecisionResult(handle, "done", 1)
        remark = response.remark or ""
        other = response.code == ResponseCode.ILLEGAL_OPERATION and "roker" in remark
        return DecisionResult(handle, "unknown" if other else "refused", remark=remark)


def _issuer(handle: str) -> str:
    """Return the name of the broker that issued a handle; empty if the handle is malformed."""
    try:
        return decode_handle(handle).broker_name
    except HandleError:
        return ""


def combined(results: Sequence[DecisionResult]) -> DecisionResult:
    """Return the combined result of several brokers for one name."""
    if len(results) == 1:
        return results[0]
    best = max(results, key=lambda result: RANKS.index(result.verdict))
    due = [result.due_ms for result in results if result.due_ms >= 0]
    former = [result.former_due_ms for result in results if result.former_due_ms >= 0]
    return DecisionResult(
        best.name,
        best.verdict,
        sum(result.messages for result in results),
        min(due, default=-1),
        sum(result.refused for result in results),
        best.remark,
        min(former, default=-1),
    )
