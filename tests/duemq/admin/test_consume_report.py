from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from delayed_delivery import steps
from duemq.admin import consume_report
from duemq.admin.consume_report import ConsumeReport
from duemq.registry.clients import ClientTable
from duemq_common.request import Request, Response
from tests.support.fakes import FakeGroups, FakeOffsets, FakeTopics, fake_topic
from tests.support.stores import open_store, put_one


class ListedGroups(FakeGroups):
    def __iter__(self) -> Any:
        return iter(self.table.values())


class ListedOffsets(FakeOffsets):
    async def topics_by_group(self) -> dict[str, list[str]]:
        groups = {group for group, _, _ in self.table}
        return {
            group: list({topic for name, topic, _ in self.table if name == group})
            for group in groups
        }

    def groups_of(self, topic: str) -> list[str]:
        return sorted({group for group, name, _ in self.table if name == topic})


@pytest.fixture
def groups() -> ListedGroups:
    return ListedGroups()


@pytest.fixture
def offsets() -> ListedOffsets:
    return ListedOffsets()


@pytest.fixture
def rig(
    tmp_path: Path, groups: ListedGroups, offsets: ListedOffsets
) -> Iterator[Mapping[int, Callable[..., Any]]]:
    with open_store(tmp_path) as store:
        for queue in (0, 0, 0, 1):
            put_one(store, "T", queue)
        topics = FakeTopics(fake_topic("T", 2), fake_topic("O", 2, order=True))
        groups.find_or_create("G")
        groups.find_or_create("H")
        offsets.commit("G", "T", 0, 1)
        offsets.commit("G", "O", 0, 0)
        offsets.commit("H", "T", 0, 2)
        offsets.commit("H", "T", 1, 1)

        async def stats_of(request: Request) -> Response:
            return Response(body=json.dumps({"requested": request.fields["topic"]}).encode())

        report = ConsumeReport(
            store, topics, groups, offsets, ClientTable(), stats_of, "127.0.0.1:10911"
        )
        yield report.handlers()


def test_every_group_and_the_lag_of_all(
    run: Callable[..., Any], rig: Mapping[int, Callable[..., Any]]
) -> None:
    body = json.loads(run(rig[317](Request(317, {"isOrder": "false"}))).body)
    assert body == {
        "brokerAddr": "127.0.0.1:10911",
        "consumeStatsList": [{"G": [{"requested": "T"}]}, {"H": [{"requested": "T"}]}],
        "totalDiff": 4,
        "totalInflightDiff": 0,
    }
    body = json.loads(run(rig[317](Request(317, {"isOrder": "true"}))).body)
    assert body["consumeStatsList"] == [{"G": [{"requested": "O"}]}]


@pytest.mark.parametrize("code", [317, 308])
def test_a_report_of_a_busy_broker_takes_few_turns(
    rig: Mapping[int, Callable[..., Any]],
    groups: ListedGroups,
    offsets: ListedOffsets,
    monkeypatch: pytest.MonkeyPatch,
    code: int,
) -> None:
    """With turns of 200 ms, a turn for each group takes longer than a tool waits."""
    for number in range(100):
        groups.find_or_create(f"g{number}")
        offsets.commit(f"g{number}", "T", 0, 0)
    fields = {"isOrder": "false", "compareGroup": "G", "topic": "T"}
    used_s = 0.0

    def processor_s() -> float:
        nonlocal used_s
        used_s += 0.001  # of a group
        return used_s

    monkeypatch.setattr(steps, "thread_processor_s", processor_s)

    async def main() -> int:
        nonlocal used_s
        task, turns = asyncio.ensure_future(rig[code](Request(code, fields))), 0
        while not task.done():
            used_s += 0.2
            turns += 1
            await asyncio.sleep(0)
        assert task.result().code == 0
        return turns

    assert asyncio.run(main()) < 50


def test_the_bytes_of_the_response_are_limited(
    run: Callable[..., Any],
    rig: Mapping[int, Callable[..., Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A frame of more than 16 MiB would be refused by the client."""
    monkeypatch.setattr(consume_report, "REPORT_BYTES_MAX", len(b'{"requested": "T"}'))
    response = run(rig[317](Request(317, {"isOrder": "false"})))
    body = json.loads(response.body)
    assert body["consumeStatsList"] == [{"G": [{"requested": "T"}]}]
    assert body["totalDiff"] == 3
    assert response.remark == "1 topics of groups are left out; ask for a group"


@pytest.mark.parametrize(
    ("left_out", "body"),
    [
        ("", b'{"correctionOffsets":{0:1,1:1}}'),
        ("G", b'{"correctionOffsets":{0:1,1:1}}'),
        ("G,H", b'{"correctionOffsets":{}}'),
    ],
)
def test_corrections_are_the_lowest_of_all_groups(
    run: Callable[..., Any],
    rig: Mapping[int, Callable[..., Any]],
    left_out: str,
    body: bytes,
) -> None:
    fields = {"filterGroups": left_out, "compareGroup": "G", "topic": "T"}
    assert run(rig[308](Request(308, fields))).body == body
