"""`duemq drain`: sends are refused, due messages are waited for, and the way back."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from duemq.cli import drain
from duemq.cli.exits import Exit
from duemq.client import Message, Producer, Refused, Unreachable
from duemq.client.admin.cluster import BrokerMember
from duemq.client.push_consumer import PushConsumer
from duemq_common.codes import ResponseCode
from tests.duemq.client.test_push_consumer import FAST, Collector
from tests.support.commands import TIMEOUT_S, Running, duemq, environment, start
from tests.support.wait_until import until

STAY_OFF = (
    "duemq: the sends of test stay off; let it accept sends again after its restart: "
    "duemq drain test --undo"
)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    running = start(tmp_path_factory.mktemp("broker"))
    yield running
    running.stop()


def drained(broker: Running, *words: str, code: Exit = Exit.DONE) -> dict[str, Any]:
    done = duemq("drain", *words, "--json", *broker.where)
    assert done.returncode == code, done.stderr
    state: dict[str, Any] = json.loads(done.stdout)
    return state


def test_a_drained_broker_refuses_sends_and_delivers_what_is_due(broker: Running) -> None:
    assert duemq("send", "T", "soon", "--at", "+2s", *broker.where).returncode == 0
    assert duemq("send", "T", "later", "--level", "2", *broker.where).returncode == 0
    state = drained(broker)
    assert (state["broker"], state["accepts_sends"]) == ("test", False)
    assert (state["pending"], state["lag"], state["drained"]) == (1, 0, True)
    assert duemq("send", "T", "x", *broker.where).returncode == Exit.REFUSED
    read = duemq("consume", "T", "--from-first", "--count", "1", "--json", *broker.where)
    assert '"soon"' in read.stdout

    state = drained(broker, "--undo")
    assert (state["accepts_sends"], state["pending"]) == (True, 1)
    assert duemq("send", "T", "x", *broker.where).returncode == 0


def test_what_is_due_after_the_timeout_is_reported(broker: Running) -> None:
    duemq("send", "T", "later", "--at", "+1h", *broker.where)
    state = drained(broker, "--soon", "2h", "--timeout", "1ms", code=Exit.FOUND_FAULT)
    assert not state["drained"]
    assert drained(broker, "test", "--undo")["accepts_sends"]


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("--soon", "10"), Exit.USAGE, "must be a span such as 30s"),
        (("other",), Exit.REFUSED, "there is no master of broker other"),
    ],
)
def test_wrong_arguments(broker: Running, words: tuple[str, ...], code: Exit, text: str) -> None:
    done = duemq("drain", *words, *broker.where)
    assert (done.returncode, text in done.stderr) == (code, True)


def drain_process(broker: Running) -> subprocess.Popen[str]:
    """Start a drain that waits for a message of the next two hours; return it when it waits."""
    duemq("send", "T", "later", "--at", "+1h", *broker.where)
    words = ("drain", "--soon", "2h", "--timeout", "30s", *broker.where)
    command = [sys.executable, "-m", "duemq", *words]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    )
    assert process.stderr is not None
    line = process.stderr.readline()
    assert line.startswith("duemq: test is busy: "), line
    assert "pending, next due 2" in line
    return process


@pytest.mark.extended
def test_an_interrupted_drain_reports_that_the_sends_stay_off(broker: Running) -> None:
    process = drain_process(broker)
    process.send_signal(signal.SIGINT)
    out, text = process.communicate(timeout=TIMEOUT_S)
    assert (process.returncode, out) == (Exit.INTERRUPTED, "")
    assert text.splitlines()[-1] == STAY_OFF
    assert duemq("send", "T", "x", *broker.where).returncode == Exit.REFUSED
    assert drained(broker, "test", "--undo")["accepts_sends"]


@pytest.mark.extended
def test_a_broker_that_stops_during_a_drain_is_reported(tmp_path: Path) -> None:
    broker = start(tmp_path)
    process = drain_process(broker)
    broker.stop()
    _, text = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == Exit.UNREACHABLE, text
    off, reason = text.splitlines()[-2:]
    assert off == STAY_OFF
    assert "does not respond" in reason


@pytest.mark.extended
def test_another_broker_that_does_not_respond_is_not_asked(broker: Running, tmp_path: Path) -> None:
    address = str(broker.ready["namesrv"])
    keys = {"brokerName": "other", "embeddedNamesrvEnable": "false", "namesrvAddr": address}
    other = start(tmp_path, **keys)
    try:
        until(
            lambda: "other" in duemq("cluster", *broker.where).stdout,
            seconds=TIMEOUT_S,
            what="a registration",
        )
        other.process.send_signal(signal.SIGSTOP)
        assert duemq("drain", "--json", *broker.where).returncode == Exit.USAGE  # there are two
        assert drained(broker, "test")["drained"]
        assert drained(broker, "test", "--undo")["accepts_sends"]
    finally:
        other.process.kill()
        other.process.communicate()


def test_members_of_a_broadcasting_group_are_not_waited_for(
    broker: Running, tmp_path: Path
) -> None:
    async def main() -> dict[str, Any]:
        address, handler = str(broker.ready["address"]), Collector()
        async with Producer(broker=address, timeout_s=TIMEOUT_S) as producer:
            await producer.send(Message("All", b"1"))
        consumer = PushConsumer(
            broker=address, group="broadcast", settings=replace(FAST, offsets_file=tmp_path / "o")
        )
        consumer.subscribe("All", handler)
        async with consumer:
            await handler.wait_for(1)
            words = ("test", "--timeout", "1ms", "--soon", "1s")
            return await asyncio.to_thread(drained, broker, *words)

    state = asyncio.run(main())
    assert (state["lag"], state["drained"]) == (0, True)
    assert drained(broker, "test", "--undo")["accepts_sends"]


class OneBroker:
    """Target and client of a broker that responds to the change with an error, or not."""

    def __init__(
        self, error: Exception | None, *, as_json: bool = False, permission: str = "7"
    ) -> None:
        self.as_json, self._error, self._permission = as_json, error, permission
        self.changes: list[dict[str, int]] = []

    @asynccontextmanager
    async def admin(self) -> AsyncIterator[OneBroker]:
        yield self

    async def masters(self, names: list[str]) -> list[BrokerMember]:
        return [BrokerMember("cluster", "test", 0, "127.0.0.1:1")]

    async def broker_config(self, address: str) -> dict[str, str]:
        return {"brokerPermission": self._permission}

    async def update_broker_config(self, address: str, changes: dict[str, int]) -> None:
        self.changes.append(changes)
        if self._error is not None:
            raise self._error


@pytest.mark.parametrize(
    ("error", "undo", "stay_off"),
    [
        (Refused(ResponseCode.NO_PERMISSION, "no"), False, False),
        (Unreachable("no response"), False, True),
        (Unreachable("no response"), True, False),
    ],
    ids=["refused", "lost response", "undo"],
)
def test_sends_that_may_be_off_are_reported(
    capsys: pytest.CaptureFixture[str], error: Exception, undo: bool, stay_off: bool
) -> None:
    target: Any = OneBroker(error, permission="4" if undo else "6")
    with pytest.raises(type(error)):
        drain.drain(target, "", soon="1s", timeout="1s", undo=undo)
    assert ("stay off" in capsys.readouterr().err) == stay_off


@pytest.mark.parametrize(
    ("before", "undo", "after"),
    [(6, False, 4), (4, True, 6), (2, False, 0), (0, True, 2), (4, False, None), (6, True, None)],
)
def test_only_the_permission_to_write_changes(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    before: int,
    undo: bool,
    after: int | None,
) -> None:
    async def state(*_: object) -> drain.DrainState:
        return drain.DrainState("test", undo, 0, None, 0, drained=True)

    monkeypatch.setattr(drain, "_state", state)
    target: Any = OneBroker(None, permission=str(before))
    drain.drain(target, "", soon="1s", timeout="1s", undo=undo)
    assert target.changes == ([] if after is None else [{"brokerPermission": after}])
    text = capsys.readouterr().err
    assert ("the sends of test were off before" in text) == (after is None and not undo)


def test_json_output_has_no_progress(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    busy = drain.DrainState("test", False, 1, None, 0, drained=False)
    states = [busy, replace(busy, drained=True)]

    async def state(*_: object) -> drain.DrainState:
        return states.pop(0)

    monkeypatch.setattr(drain, "_state", state)
    monkeypatch.setattr(drain, "POLL_S", 0.0)
    target: Any = OneBroker(None, as_json=True)
    drain.drain(target, "", soon="1s", timeout="10m", undo=False)
    output = capsys.readouterr()
    assert (json.loads(output.out)["drained"], output.err, states) == (True, "", [])


@pytest.mark.parametrize(
    ("accepts_sends", "is_drained", "text"),
    [(False, True, "drained"), (False, False, "busy"), (True, True, "active")],
)
def test_a_broker_that_accepts_sends_is_not_shown_as_drained(
    accepts_sends: bool, is_drained: bool, text: str
) -> None:
    state = drain.DrainState("a", accepts_sends, 0, None, 0, is_drained)
    assert drain._row(state)[-1] == text
