from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from duemq.net.dispatcher import Dispatcher
from duemq.pull.offset_requests import OffsetProcessor
from duemq.pull.pull_plan import PullLimits
from duemq.registry.groups import GroupConfig
from duemq_common.clock import FakeClock
from duemq_common.errors import RequestError
from duemq_common.request import Request, Response
from tests.support.fakes import (
    FakeGroups,
    FakeOffsets,
    FakeStore,
    FakeTopics,
    fake_topic,
    put,
)


class Rig:
    def __init__(self, **limits: int) -> None:
        self.clock = FakeClock(1_000)
        self.store = FakeStore(self.clock)
        self.offsets = FakeOffsets()
        self.groups = FakeGroups(GroupConfig(name="G"))
        self.handlers = OffsetProcessor(
            self.store,
            FakeTopics(fake_topic("T")),
            self.groups,
            self.offsets,
            lambda: PullLimits(**limits),
        ).handlers()

    async def call(self, code: int, **changes: str | int) -> Response | None:
        values = {"consumerGroup": "G", "topic": "T", "queueId": 0} | changes
        found = {name: str(value) for name, value in values.items()}
        response = self.handlers[code](Request(code, found))
        return await response if isinstance(response, Awaitable) else response


@pytest.mark.parametrize(
    ("committed", "messages", "zero", "span_bytes", "code", "offset"),
    [
        (5, 0, None, 1 << 30, 0, "5"),
        (0, 0, None, 1 << 30, 0, "0"),
        (-1, 0, None, 1 << 30, 22, None),
        (None, 0, None, 1 << 30, 22, None),
        (None, 1, None, 1 << 30, 0, "0"),
        (-1, 1, None, 1 << 30, 0, "0"),
        (None, 1, "true", 1 << 30, 0, "0"),
        (None, 1, "false", 1 << 30, 22, None),
        (None, 2, None, 10, 22, None),
    ],
)
def test_query_returns_the_offset_or_zero_for_a_new_queue(
    run: Callable[..., Any],
    committed: int | None,
    messages: int,
    zero: str | None,
    span_bytes: int,
    code: int,
    offset: str | None,
) -> None:
    rig = Rig(memory_span_bytes=span_bytes)
    if committed is not None:
        rig.offsets.commit("G", "T", 0, committed)
    put(rig.store, "T", *[b"x"] * messages)
    changes = {} if zero is None else {"setZeroIfNotFound": zero}
    response = run(rig.call(14, **changes))
    assert (response.code, response.fields.get("offset")) == (code, offset)


def test_a_queue_whose_first_message_was_removed_is_not_new(run: Callable[..., Any]) -> None:
    rig = Rig()
    put(rig.store, "T", b"x", b"y")
    rig.store.first[0] = 1
    assert run(rig.call(14)).code == 22


def test_update_stores_smaller_and_negative_offsets(run: Callable[..., Any]) -> None:
    rig = Rig()
    for offset in (9, 3, -1):
        response = run(rig.call(15, commitOffset=offset))
        assert (response.code, response.fields) == (0, {})
        assert rig.offsets.query("G", "T", 0) == offset


@pytest.mark.parametrize(
    ("changes", "known", "code"),
    [({"topic": "U"}, True, 17), ({}, False, 26), ({"commitOffset": "x"}, True, 1)],
)
def test_update_of_unknown_topics_and_groups_is_refused(
    run: Callable[..., Any], changes: dict[str, str], known: bool, code: int
) -> None:
    rig = Rig()
    if not known:
        rig.groups.table.clear()
    with pytest.raises(RequestError) as refusal:
        run(rig.call(15, **({"commitOffset": 1} | changes)))
    assert refusal.value.code == code


def test_queries_return_a_pending_reset_and_updates_are_ignored(run: Callable[..., Any]) -> None:
    rig = Rig()
    rig.offsets.commit("G", "T", 0, 9)
    rig.offsets.set_reset("G", "T", 0, 4)
    assert run(rig.call(14)).fields == {"offset": "4"}
    assert run(rig.call(15, commitOffset=10)).code == 0
    assert rig.offsets.query("G", "T", 0) == 9


def test_bounds_and_offsets_by_time(run: Callable[..., Any]) -> None:
    rig = Rig()
    for _ in range(3):
        put(rig.store, "T", b"x")
        rig.clock.advance(100)
    requested = [
        (30, {}, "offset", "3"),
        (31, {}, "offset", "0"),
        (29, {"timestamp": 1_050}, "offset", "1"),
        (29, {"timestamp": 1_150, "boundaryType": "upper"}, "offset", "1"),
        (32, {}, "timestamp", "1000"),
        (30, {"topic": "none"}, "offset", "0"),
        (31, {"queueId": 77}, "offset", "0"),
        (32, {"topic": "none"}, "timestamp", "-1"),
    ]
    for code, changes, name, value in requested:
        assert run(rig.call(code, **changes)).fields == {name: value}


@pytest.mark.parametrize("code", [14, 15, 30, 31])
def test_offsets_need_no_task(code: int) -> None:
    assert Dispatcher(Rig().handlers).responds_at_once(code)
