"""Recall (370): order and codes of the checks, Apache's marker, a recall port."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from delivery.plugin import Recalled, Request, Response
from duemq.configuration.config import BrokerConfig
from duemq.messages.recall import RecallProcessor
from duemq.messages.recall_handle import RecallHandle
from duemq.ports import Identity
from duemq.send.put_path import PutPath
from message_store.errors import RequestError
from message_store.log.batch import PutBatch
from message_store.store import MessageStore
from tests.support.fakes import HOST, FakeTopic, FakeTopics
from tests.support.stores import open_store
from timer_store.config import TimerConfig
from timer_store.enqueue.put_hook import TimerHook
from timer_store.names import TIMER_TOPIC

IDENTITY = Identity("broker-a", "DefaultCluster", 0, HOST)
KEY = "FD0000000000000000000000000000022F4530946E09676464F0006A"


class World:
    def __init__(
        self,
        store: MessageStore,
        *,
        recalls: Port | None = None,
        hooks: list[Callable[..., Any]] | None = None,
        **config: int,
    ) -> None:
        self.store, self.config = store, {"recall_enable": True} | config
        hook = TimerHook(store.topics, TimerConfig(), lambda time_ms: 0)
        self.path = PutPath(store, [hook] if hooks is None else hooks, store.clock)
        self.processor = RecallProcessor(
            store, FakeTopics(FakeTopic("T"), FakeTopic("U")), self.path.put_confirmed, IDENTITY,
            store.clock, lambda: BrokerConfig(**self.config), recalls,
        )  # fmt: skip

    def handle(
        self, late_ms: int = 10_001, topic: str = "T", broker: str = "broker-a", key: str = KEY
    ) -> str:
        return RecallHandle(topic, broker, str(self.store.clock.now_ms() + late_ms), key).encode()

    async def recall(self, handle: str, topic: str = "T", **more: object) -> Response:
        fields = {"topic": topic, "recallHandle": handle, "producerGroup": "p"} | more
        return await self.processor.recall(Request(370, fields))


class Port:
    def __init__(self, response: Recalled) -> None:
        self.response, self.asked = response, list[Any]()

    async def recall(self, topic: str, time_ms: int, unique_id: str) -> Recalled:
        self.asked.append((topic, time_ms, unique_id))
        return self.response


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    with open_store(tmp_path) as store:
        yield store


def refused(run: Callable[..., Any], world: World, *args: str, **kwargs: object) -> RequestError:
    with pytest.raises(RequestError) as caught:
        run(world.recall(*args, **kwargs))
    return caught.value


def test_without_a_recall_port_a_marker_is_stored_in_the_slot_of_its_timer(
    run: Callable[..., Any], store: MessageStore
) -> None:
    world = World(store)
    now_ms = store.clock.now_ms()
    response = run(world.recall(world.handle(late_ms=9_501 - now_ms % 1_000)))
    assert (response.code, response.fields) == (0, {"msgId": KEY, "MSG_REGION": "DefaultRegion"})
    unit = store.units(TIMER_TOPIC, 0, 0, 1)[0]
    record = store.read_record(int(unit["phys_offset"]))
    time_ms = now_ms - now_ms % 1_000 + 9_501
    assert record.body == b"0"
    assert record.properties == {
        "TAGS": "_RECALL_TAG_",
        "UNIQ_KEY": KEY,
        "TIMER_DEL_UNIQKEY": f"T+{KEY}",
        "TIMER_DELIVER_MS": str(time_ms),
        "TIMER_OUT_MS": str(time_ms - time_ms % 1_000),
        "PGROUP": "p",
        "BORN_TIMESTAMP": str(now_ms),
        "REAL_TOPIC": "T",
        "REAL_QID": "0",
    }


def test_the_time_of_a_handle_is_in_the_slot_of_its_timer(
    run: Callable[..., Any], store: MessageStore
) -> None:
    world, out_ms = World(store), store.clock.now_ms() // 1_000 * 1_000 + 7_000
    run(world.recall(world.handle(late_ms=out_ms + 1 - store.clock.now_ms())))
    record = store.read_record(int(store.units(TIMER_TOPIC, 0, 0, 1)[0]["phys_offset"]))
    assert record.properties["TIMER_OUT_MS"] == str(out_ms)


@pytest.mark.parametrize(
    ("rule", "config", "changes", "code", "says"),
    [
        ("switched off", {"recall_enable": False}, {}, 16, "recallMessageEnable"),
        ("not yet", {"start_accept_ms": 1 << 50}, {}, 14, "until"),
        ("not writable", {"permission": 4, "recall_unwritable": False}, {}, 14, "not writable"),
        ("unknown topic", {}, {"topic": "Nowhere"}, 17, "Nowhere"),
        ("no handle", {}, {"handle": "!"}, 604, "not base64"),
        ("a cut handle", {}, {"handle": "djEgVA=="}, 604, "incomplete"),
        ("another topic", {}, {"topic": "U"}, 604, "topic not match"),
        ("another broker", {}, {"broker": "broker-b"}, 604, "another broker"),
        ("no time", {}, {"time": "soon"}, 604, "has no time"),
        ("a time of 19 digits", {}, {"time": "9" * 19}, 604, "has no time"),
        ("now", {}, {"late_ms": 0}, 604, "is past"),
        ("long ago", {}, {"late_ms": -(10**12)}, 604, "is past"),
        ("before 1970", {}, {"time": "-5"}, 604, "has no time"),
        ("too far", {}, {"late_ms": 259_200_001}, 604, "max delay 259200000ms"),
    ],
)
def test_codes_of_refused_recalls(
    run: Callable[..., Any],
    store: MessageStore,
    rule: str,
    config: dict[str, int],
    changes: dict[str, str | int],
    code: int,
    says: str,
) -> None:
    world = World(store, **config)
    topic = changes.get("topic", "T")
    if "time" in changes:
        handle = RecallHandle("T", "broker-a", changes["time"], KEY).encode()
    else:
        made = {name: changes[name] for name in ("late_ms", "broker") if name in changes}
        handle = changes.get("handle") or world.handle(**made)  # type: ignore[assignment]
    error = refused(run, world, handle, topic)
    assert (error.code, says in error.remark) == (code, True), (rule, error.remark)
    assert store.queue_bounds(TIMER_TOPIC, 0) == (0, 0)


def test_recalls_are_accepted_while_the_broker_is_not_writable_by_default(
    run: Callable[..., Any], store: MessageStore
) -> None:
    world = World(store, permission=4)
    assert run(world.recall(world.handle())).code == 0


@pytest.mark.parametrize("missing", ["topic", "recallHandle"])
def test_a_missing_field_is_a_system_error(
    run: Callable[..., Any], store: MessageStore, missing: str
) -> None:
    fields = {"topic": "T", "recallHandle": World(store).handle()}
    del fields[missing]
    with pytest.raises(RequestError, match=missing) as caught:
        run(World(store).processor.recall(Request(370, fields)))
    assert caught.value.code == 1


def test_a_marker_that_the_store_refuses_is_a_system_error(
    run: Callable[..., Any], store: MessageStore
) -> None:
    def full(batch: PutBatch, now_ms: int) -> None:
        batch.refuse(0, 14, "the disk is full")

    world = World(store, hooks=[full])
    error = refused(run, world, world.handle())
    assert (error.code, error.remark) == (1, "recall failed: the disk is full")


# A port that decides.


@pytest.mark.parametrize(
    ("response", "code"), [(Recalled.DONE, 0), (Recalled.DELIVERED, 604), (Recalled.UNKNOWN, 604)]
)
def test_the_recall_port_decides_and_no_marker_is_stored(
    run: Callable[..., Any], store: MessageStore, response: Recalled, code: int
) -> None:
    port = Port(response)
    world = World(store, recalls=port)
    if code:
        error = refused(run, world, world.handle())
        assert error.code == code
        assert ("already delivered" in error.remark) == (response is Recalled.DELIVERED)
    else:
        assert run(world.recall(world.handle())).fields["msgId"] == KEY
    assert port.asked == [("T", store.clock.now_ms() + 10_001, KEY)]
    assert store.queue_bounds(TIMER_TOPIC, 0) == (0, 0)


@pytest.mark.finding("3C9")
@pytest.mark.parametrize("response", list(Recalled))
def test_the_response_to_a_recall_without_a_message_can_be_apaches(
    run: Callable[..., Any], store: MessageStore, response: Recalled
) -> None:
    world = World(store, recalls=Port(response), recall_reports_unknown=False)
    found = run(world.recall(world.handle()))
    assert (found.code, found.fields["msgId"]) == (0, KEY)
    late = refused(run, world, world.handle(late_ms=-1_000))
    assert late.code == 604


@pytest.mark.parametrize(("late_ms", "asked"), [(1, 1), (0, 1), (-999, 1), (-1_000, 0)])
def test_the_recall_port_is_called_until_the_slot_of_the_timer_ends(
    run: Callable[..., Any], store: MessageStore, late_ms: int, asked: int
) -> None:
    """A message due at the end of its second can be cancelled until it is due."""
    port = Port(Recalled.DONE)
    world = World(store, recalls=port)
    if asked:
        assert run(world.recall(world.handle(late_ms=late_ms))).code == 0
    else:
        assert refused(run, world, world.handle(late_ms=late_ms)).code == 604
    assert len(port.asked) == asked
