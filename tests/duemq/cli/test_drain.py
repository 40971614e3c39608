"""`duemq drain`: sends are refused, due messages are waited for, and the way back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from duemq.cli.exits import Exit
from tests.support.commands import Running, duemq, start


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
