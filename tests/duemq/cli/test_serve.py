"""Signals of `duemq broker` before it serves, and the time limit of its stop."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from duemq.cli.serve import enable_garbage_collector
from message_store.kernels import CACHE_VARIABLE
from tests.support.extended import extended
from tests.support.requirements import Missing, need_commands, skip_without
from tests.support.running_broker import small
from tests.support.wait_until import until

TIMEOUT_S = 120
PID_1 = ["unshare", "--pid", "--fork", "--kill-child"]
HANGS = """
import asyncio, sys
import duemq.cli.serve
from duemq.broker.broker import Broker
from duemq.cli.app import app

async def stopped(self, *error):
    print("stops", flush=True)
    await asyncio.Event().wait()

duemq.cli.serve.STOP_S_MAX = 1
duemq.cli.serve._on_ready = lambda broker, *more: broker.stop_for_signal("SIGTERM")
Broker.__aexit__ = stopped
app(sys.argv[1:])
"""


def configured(directory: Path) -> list[str]:
    """Write a configuration and return the arguments of `duemq broker`."""
    conf = directory / "broker.conf"
    conf.write_text("".join(f"{key}={value}\n" for key, value in small(directory / "s").items()))
    return ["broker", "-c", str(conf)]


@contextmanager
def compiling(prefix: list[str], directory: Path) -> Iterator[subprocess.Popen[str]]:
    """Run a broker whose kernel cache is empty, while it compiles."""
    process = subprocess.Popen(
        [*prefix, sys.executable, "-m", "duemq", *configured(directory)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, CACHE_VARIABLE: str(directory / "cache")},
    )
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        if "unshare" in line:
            raise Missing(line)
        assert "compiling kernels" in line
        yield process
    finally:
        process.kill()
        process.communicate()


def children_of(pid: int) -> list[int]:
    """Return the ids of the child processes of a process."""
    return [int(pid) for pid in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.sampled
@pytest.mark.finding("3U2")
@pytest.mark.parametrize(
    ("prefix", "number"),
    [
        extended([], signal.SIGTERM, id="process, SIGTERM"),
        pytest.param([], signal.SIGINT, id="process, SIGINT"),
        pytest.param(PID_1, signal.SIGTERM, id="PID 1 of a container, SIGTERM"),
        extended(PID_1, signal.SIGINT, id="PID 1 of a container, SIGINT"),
    ],
)
def test_a_signal_stops_the_first_compilation(
    prefix: list[str], number: signal.Signals, tmp_path: Path
) -> None:
    with skip_without():
        need_commands(*prefix[:1])
        with compiling(prefix, tmp_path) as process:
            pid = process.pid if not prefix else children_of(process.pid)[0]
            compilers = until(lambda: children_of(pid), seconds=TIMEOUT_S, what="compilers")
            os.kill(pid, number)
            _, log = process.communicate(timeout=TIMEOUT_S)
            assert process.returncode == 0, log
            assert f"{number.name}: stopped before the start was complete" in log
            until(
                lambda: not any(Path(f"/proc/{compiler}").exists() for compiler in compilers),
                seconds=TIMEOUT_S,
                what="end of the compilers",
            )
    assert not (tmp_path / "s" / "commitlog").exists()


@pytest.mark.extended
@pytest.mark.finding("3D6")
def test_a_stop_that_hangs_ends_with_the_stacks_of_the_threads(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", HANGS, *configured(tmp_path)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 1
    assert "stops" in done.stdout
    assert "Timeout (0:00:01)!" in done.stderr
    assert "most recent call first" in done.stderr


def test_held_pulls_that_begin_again_cause_no_collection_of_all_objects() -> None:
    def pulls(count: int) -> Iterator[dict[str, list[int]]]:
        return ({"pull": [number]} for number in range(count))

    def count(phase: str, facts: dict[str, int]) -> None:
        generations.append(facts["generation"])

    generations: list[int] = []
    held, thresholds = deque(pulls(20_000)), gc.get_threshold()
    gc.callbacks.append(count)
    try:
        enable_garbage_collector()
        for _ in range(100):
            for _ in range(2_000):
                held.popleft()
            held.extend(pulls(2_000))
    finally:
        gc.callbacks.remove(count)
        gc.disable()
        gc.set_threshold(*thresholds)
    assert 2 not in generations
