"""Brokers that decisions are sent to: all of them, or the one that issued a handle."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import msgspec
import pytest

from duemq.client import PendingDecisions, Refused, Unreachable
from duemq.net.decisions import DecisionRequest, DecisionResponse, DecisionResult
from duemq_common.codes import RequestCode, ResponseCode
from duemq_common.recall_handle import RecallHandle
from duemq_common.request import Request, Response
from tests.support.scripted_server import reply, scripted

Run = Callable[..., Any]
A, B, ELSEWHERE = (RecallHandle("T", name, "1", "U").encode() for name in ("a", "b", "c"))


class Cluster:
    """A name server and brokers, and what they received.

    Attributes:
        masters: Index of the server that is the master of each broker, by its name.
        refusals: Code of the responses of a server; None: it hangs up.
        requests: Server and names of each decision request.
    """

    def __init__(self) -> None:
        self.masters = {"a": 0, "b": 1}
        self.refusals: dict[int, int | None] = {}
        self.requests: list[tuple[int, list[str]]] = []
        self.lookups = 0
        self.addresses: list[str] = []

    def namesrv(self, request: Request) -> bytes:
        assert request.code == RequestCode.GET_BROKER_CLUSTER_INFO
        self.lookups += 1
        table = {
            name: {"brokerName": name, "brokerAddrs": {"0": self.addresses[index]}}
            for name, index in self.masters.items()
        }
        return reply(request, Response(body=json.dumps({"brokerAddrTable": table}).encode()))

    def broker(self, index: int) -> Callable[[Request], bytes | None]:
        def answer(request: Request) -> bytes | None:
            command = msgspec.json.decode(request.body, type=DecisionRequest)
            names = [*command.ids, *command.keys, *command.handles]
            self.requests.append((index, names))
            if index in self.refusals:
                code = self.refusals[index]
                return None if code is None else reply(request, Response(code, "no"))
            results = [DecisionResult(name, "done", index + 1) for name in names]
            body = msgspec.json.encode(DecisionResponse(results, command.dry_run))
            return reply(request, Response(body=body))

        return answer


def with_cluster(run: Run, work: Callable[[Cluster, PendingDecisions], Any]) -> None:
    async def main() -> None:
        cluster = Cluster()
        async with AsyncExitStack() as stack:
            for index in range(3):
                address = await stack.enter_async_context(scripted(cluster.broker(index)))
                cluster.addresses.append(address)
            namesrv = await stack.enter_async_context(scripted(cluster.namesrv))
            await work(cluster, await stack.enter_async_context(PendingDecisions(namesrv)))

    run(main())


def test_a_handle_goes_to_its_broker_and_the_name_server_too_once(run: Run) -> None:
    async def work(cluster: Cluster, decisions: PendingDecisions) -> None:
        for handle in (A, B, A):
            await decisions.cancel(handles=[handle])
        results = await decisions.cancel(handles=[B, A, B], ids=["i"])
        assert [(each.name, each.messages) for each in results] == [
            ("i", 1 + 2),
            (B, 2),
            (A, 1),
            (B, 2),
        ]
        assert cluster.requests == [
            (0, [A]),
            (1, [B]),
            (0, [A]),
            (0, ["i"]),
            (1, ["i"]),
            (1, [B, B]),
            (0, [A]),
        ]
        assert cluster.lookups == 2  # again for the id

    with_cluster(run, work)


@pytest.mark.parametrize("refusal", [ResponseCode.SLAVE_NOT_AVAILABLE, None])
def test_a_handle_follows_a_failover(run: Run, refusal: int | None) -> None:
    """A former master refuses decisions, or is away; then the client looks its master up again."""

    async def work(cluster: Cluster, decisions: PendingDecisions) -> None:
        await decisions.cancel(handles=[A])
        cluster.masters["a"], cluster.refusals[0] = 2, refusal
        for _ in range(2):
            (result,) = await decisions.cancel(handles=[A])
            assert result.messages == 3
        assert [index for index, _ in cluster.requests] == [0, 0, 2, 2]
        assert cluster.lookups == 2

    with_cluster(run, work)


@pytest.mark.parametrize(
    ("refusal", "error", "lookups"),
    [
        (ResponseCode.SLAVE_NOT_AVAILABLE, Refused, 2),
        (None, Unreachable, 2),
        (ResponseCode.NO_PERMISSION, Refused, 1),
    ],
)
def test_a_request_is_not_repeated_at_the_same_master(
    run: Run, refusal: int | None, error: type[Exception], lookups: int
) -> None:
    async def work(cluster: Cluster, decisions: PendingDecisions) -> None:
        cluster.refusals[0] = refusal
        with pytest.raises(error):
            await decisions.cancel(handles=[A])
        assert (len(cluster.requests), cluster.lookups) == (1, lookups)

    with_cluster(run, work)


@pytest.mark.parametrize("handle", [ELSEWHERE, "x", ""])
def test_any_broker_responds_about_a_handle_of_none(run: Run, handle: str) -> None:
    async def work(cluster: Cluster, decisions: PendingDecisions) -> None:
        assert len(await decisions.cancel(handles=[handle])) == 1
        assert cluster.requests == [(0, [handle])]

    with_cluster(run, work)


def test_ids_go_to_brokers_that_have_just_joined(run: Run) -> None:
    """Calls of one turn of the event loop share a request to the name server."""

    async def work(cluster: Cluster, decisions: PendingDecisions) -> None:
        await asyncio.gather(*(decisions.cancel(ids=[str(n)]) for n in range(9)))
        assert cluster.lookups == 1
        cluster.masters["c"] = 2
        (result,) = await decisions.cancel(keys=["k"])
        assert (result.messages, cluster.lookups) == (1 + 2 + 3, 2)

    with_cluster(run, work)
