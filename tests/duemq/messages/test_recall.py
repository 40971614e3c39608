"""Recall (370): order and codes of the checks, a recall port."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from delayed_delivery.plugin import Recalled
from duemq.configuration.config import BrokerConfig
from duemq.messages.recall import RecallProcessor
from duemq.registry.managers import Identity
from duemq_common.errors import RequestError
from duemq_common.recall_handle import RecallHandle
from duemq_common.request import Request, Response
from message_store.store import MessageStore
from tests.support.fakes import HOST, FakeTopics, fake_topic
from tests.support.stores import open_store

IDENTITY = Identity("broker-a", "DefaultCluster", 0, HOST)
KEY = "FD0000000000000000000000000000022F4530946E09676464F0006A"


class Port:
    def __init__(self, response: Recalled) -> None:
        self.response, self.requested = response, list[Any]()

    async def recall(self, topic: str, time_ms: int, unique_id: str) -> Recalled:
        self.requested.append((topic, time_ms, unique_id))
        return self.response


DONE = Port(Recalled.DONE)


class Rig:
    def __init__(self, store: MessageStore, *, recalls: Port | None = DONE, **config: int) -> None:
        self.store, self.config = store, {"recall_enable": True} | config
        self.processor = RecallProcessor(
            FakeTopics(fake_topic("T"), fake_topic("U")),
            IDENTITY,
            store.clock,
            lambda: BrokerConfig(**self.config),
            recalls,
        )

    def handle(
        self, late_ms: int = 10_001, topic: str = "T", broker: str = "broker-a", key: str = KEY
    ) -> str:
        return RecallHandle(topic, broker, str(self.store.clock.now_ms() + late_ms), key).encode()

    async def recall(self, handle: str, topic: str = "T", **more: object) -> Response:
        fields = {"topic": topic, "recallHandle": handle, "producerGroup": "p"} | more
        return await self.processor.recall(Request(370, fields))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    with open_store(tmp_path) as store:
        yield store


def refused(run: Callable[..., Any], rig: Rig, *args: str, **kwargs: object) -> RequestError:
    with pytest.raises(RequestError) as caught:
        run(rig.recall(*args, **kwargs))
    return caught.value


@pytest.mark.finding("3C1")
def test_without_a_recall_port_a_recall_is_refused(
    run: Callable[..., Any], store: MessageStore
) -> None:
    error = refused(run, Rig(store, recalls=None), Rig(store).handle())
    assert (error.code, "timerWheelEnable is false" in error.remark) == (1, True)


@pytest.mark.parametrize(
    ("rule", "config", "changes", "code", "reason"),
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
        ("a second ago", {}, {"late_ms": -1_000}, 604, "is past"),
        ("long ago", {}, {"late_ms": -(10**12)}, 604, "is past"),
        ("before 1970", {}, {"time": "-5"}, 604, "has no time"),
    ],
)
def test_codes_of_refused_recalls(
    run: Callable[..., Any],
    store: MessageStore,
    rule: str,
    config: dict[str, int],
    changes: dict[str, str | int],
    code: int,
    reason: str,
) -> None:
    rig = Rig(store, **config)
    topic = changes.get("topic", "T")
    if "time" in changes:
        handle = RecallHandle("T", "broker-a", changes["time"], KEY).encode()
    else:
        made = {name: changes[name] for name in ("late_ms", "broker") if name in changes}
        handle = changes.get("handle") or rig.handle(**made)  # type: ignore[assignment]
    error = refused(run, rig, handle, topic)
    assert (error.code, reason in error.remark) == (code, True), (rule, error.remark)


def test_recalls_are_accepted_while_the_broker_is_not_writable_by_default(
    run: Callable[..., Any], store: MessageStore
) -> None:
    rig = Rig(store, permission=4)
    assert run(rig.recall(rig.handle())).code == 0


@pytest.mark.parametrize("missing", ["topic", "recallHandle"])
def test_a_missing_field_is_a_system_error(
    run: Callable[..., Any], store: MessageStore, missing: str
) -> None:
    fields = {"topic": "T", "recallHandle": Rig(store).handle()}
    del fields[missing]
    with pytest.raises(RequestError, match=missing) as caught:
        run(Rig(store).processor.recall(Request(370, fields)))
    assert caught.value.code == 1


# A port that decides.


@pytest.mark.parametrize(
    ("response", "code"), [(Recalled.DONE, 0), (Recalled.DELIVERED, 604), (Recalled.UNKNOWN, 604)]
)
def test_the_recall_port_decides(
    run: Callable[..., Any], store: MessageStore, response: Recalled, code: int
) -> None:
    port = Port(response)
    rig = Rig(store, recalls=port)
    if code:
        error = refused(run, rig, rig.handle())
        assert error.code == code
        assert ("already delivered" in error.remark) == (response is Recalled.DELIVERED)
    else:
        assert run(rig.recall(rig.handle())).fields["msgId"] == KEY
    assert port.requested == [("T", store.clock.now_ms() + 10_001, KEY)]


@pytest.mark.finding("3C9")
@pytest.mark.parametrize("response", list(Recalled))
def test_the_response_to_a_recall_without_a_message_can_be_apaches(
    run: Callable[..., Any], store: MessageStore, response: Recalled
) -> None:
    rig = Rig(store, recalls=Port(response), recall_reports_unknown=False)
    found = run(rig.recall(rig.handle()))
    assert (found.code, found.fields["msgId"]) == (0, KEY)
    late = refused(run, rig, rig.handle(late_ms=-1_000))
    assert late.code == 604


@pytest.mark.parametrize(("late_ms", "requested"), [(1, 1), (0, 1), (-999, 1), (-1_000, 0)])
def test_the_recall_port_is_called_until_the_slot_of_the_timer_ends(
    run: Callable[..., Any], store: MessageStore, late_ms: int, requested: int
) -> None:
    """A message due at the end of its second can be cancelled until it is due."""
    port = Port(Recalled.DONE)
    rig = Rig(store, recalls=port)
    if requested:
        assert run(rig.recall(rig.handle(late_ms=late_ms))).code == 0
    else:
        assert refused(run, rig, rig.handle(late_ms=late_ms)).code == 604
    assert len(port.requested) == requested
