"""`duemq replicas`: the table of states."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import nullcontext
from typing import Any, cast

import pytest

from duemq.cli.options import Target
from duemq.cli.replicas import show_replicas
from duemq.client.admin.cluster import BrokerMember

MASTER = {"role": "MASTER", "logEnd": 7_020, "failure": "10.0.0.2:1: the replica closed it"}
REPLICA = {"role": "SLAVE", "state": "transfer", "logEnd": 7_020, "failure": ""}


class FakeTarget:
    """Cluster of brokers with given views; None: the broker does not respond."""

    as_json = False

    def __init__(self, *views: dict[str, Any] | None) -> None:
        self._views = list(views)

    def ask(self, work: Callable[[FakeTarget], Coroutine[Any, Any, Any]]) -> Any:
        return asyncio.run(work(self))

    async def members(self) -> list[BrokerMember]:
        return [
            BrokerMember("c", "broker-a", n, f"10.0.0.{n + 1}:10911")
            for n in range(len(self._views))
        ]

    async def view(self, address: str, name: str) -> dict[str, Any]:
        view = self._views.pop(0)
        if view is None:
            raise ConnectionError(f"{address} does not respond")
        return view


@pytest.mark.parametrize(
    ("view", "shown"),
    [
        (
            MASTER | {"state": "serves", "refusal": "", "groupFailure": ""},
            "MASTER serves 7,020 - 10.0.0.2:1: the replica closed it",
        ),
        (
            MASTER | {"state": "refuses messages", "refusal": "the disk is full"},
            "MASTER refuses messages 7,020 - the disk is full",
        ),
        (
            MASTER | {"state": "refuses messages", "refusal": "x", "groupFailure": "no leader"},
            "MASTER refuses messages 7,020 - no leader",
        ),
        (REPLICA | {"lagBytes": None}, "SLAVE transfer 7,020 unknown"),
        (
            REPLICA | {"lagBytes": 0, "groupFailure": "no leader"},
            "SLAVE transfer 7,020 0 no leader",
        ),
    ],
    ids=["serves", "refuses", "controller away", "unknown lag", "replica"],
)
def test_a_row_shows_state_and_the_most_important_error(
    view: dict[str, Any], shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    show_replicas(cast("Target", FakeTarget(view)))
    [*_, row] = capsys.readouterr().out.splitlines()
    assert " ".join(row.split()) == f"broker-a 0 10.0.0.1:10911 {shown}"


@pytest.mark.parametrize(("views", "code"), [((None, None), 3), ((REPLICA, None), 0)])
def test_the_exit_code_shows_that_no_broker_responds(
    views: tuple[dict[str, Any] | None, ...], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) if code else nullcontext() as ended:
        show_replicas(cast("Target", FakeTarget(*views)))
    assert code == (ended.value.code if ended is not None else 0)
    assert "10.0.0.2:10911 does not respond" in " ".join(capsys.readouterr().out.split())
