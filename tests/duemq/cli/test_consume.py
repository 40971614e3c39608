"""`duemq consume`: hostile bodies, readers that end, brokers that restart."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from duemq.cli.exits import Exit
from tests.support.commands import TIMEOUT_S, Running, duemq, environment, start
from tests.support.extended import extended
from tests.support.free_ports import free_ports


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    running = start(tmp_path_factory.mktemp("broker"))
    yield running
    running.stop()


def starting(*words: str) -> subprocess.Popen[str]:
    """Start one command whose output is read line by line."""
    return subprocess.Popen(
        [sys.executable, "-m", "duemq", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )


@pytest.mark.finding("B16")
def test_a_body_cannot_drive_the_terminal(broker: Running) -> None:
    duemq("send", "Esc", "-", "--key", "k", *broker.where, input="\x1b]0;owned\x07\x1b[2Jü\nnext")
    got = duemq("consume", "Esc", "--from-first", "--count", "1", *broker.where)
    [line] = got.stdout.splitlines()
    assert line.isprintable()
    assert line.endswith("\\x1b]0;owned\\x07\\x1b[2Jü\\nnext")


@pytest.mark.sampled
@pytest.mark.finding("B15")
@pytest.mark.parametrize(
    "words",
    [
        ("levels", "--watch"),
        extended(("levels", "--watch", "--json")),
        extended(("timers", "follow")),
        ("timers", "follow", "--json"),
        ("consume", "Pipe", "--from-first"),  # it has no more to print
    ],
)
def test_output_into_a_pipe_comes_at_once_and_ends_with_its_reader(
    broker: Running, words: tuple[str, ...]
) -> None:
    assert duemq("send", "Pipe", "x", *broker.where).returncode == 0
    process = starting(*words, *broker.where)
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline()
    process.stdout.close()
    assert process.wait(TIMEOUT_S) == Exit.OUTPUT_CLOSED
    assert process.stderr.read() == ""
    process.stderr.close()


@pytest.mark.extended
@pytest.mark.finding("B22")
def test_consume_continues_when_the_broker_restarts(tmp_path: Path) -> None:
    # No connection takes them while the broker is stopped; VIP is 2 below, replicas 1 above.
    _, _, port, _ = free_ports(4)
    running = start(tmp_path, listenPort=str(port))
    assert duemq("send", "T", "before", *running.where).returncode == 0
    broker = ("--broker", str(running.ready["address"]))
    reader = starting("consume", "T", "--from-first", "--count", "2", *broker)
    assert reader.stdout is not None
    assert reader.stderr is not None
    assert reader.stdout.readline().rstrip().endswith("before")
    running.stop()
    assert "retrying until Ctrl-C" in reader.stderr.readline()
    running = start(tmp_path, listenPort=str(port))
    try:
        assert duemq("send", "T", "after", *running.where).returncode == 0
        out, err = reader.communicate(timeout=TIMEOUT_S)
    finally:
        running.stop()
    assert out.rstrip().endswith("after")
    assert len(out.splitlines()) == 1  # nothing is printed twice
    assert "responds again" in err
    assert reader.returncode == 0
