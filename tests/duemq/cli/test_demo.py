"""`make demo`: what it leaves behind when its terminal is closed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.commands import TIMEOUT_S, TOP, environment

POLL_S = 0.05


def brokers(pid: int) -> list[int]:
    """Return the brokers that a process has started; it may run other programs briefly."""
    pids = []
    for entry in Path("/proc").iterdir():
        try:
            stat = (entry / "stat").read_text() if entry.name.isdigit() else ""
            words = (entry / "cmdline").read_bytes() if stat else b""
        except OSError:  # it has ended meanwhile
            continue
        is_broker = b"broker.conf" in words
        if is_broker and int(stat.rpartition(")")[2].split()[1]) == pid:
            pids.append(int(entry.name))
    return pids


@pytest.mark.sampled
@pytest.mark.finding("B23")
@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
def test_a_closed_terminal_ends_the_broker_too(number: signal.Signals, tmp_path: Path) -> None:
    demo = subprocess.Popen(
        [sys.executable, "-m", "tests.support.demo", "--json"],
        cwd=TOP,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment(TMPDIR=str(tmp_path)),
    )
    try:
        while not (started := brokers(demo.pid)):
            with pytest.raises(subprocess.TimeoutExpired):  # a loop would take its processor
                demo.wait(POLL_S)
        demo.send_signal(number)
        demo.communicate(timeout=TIMEOUT_S)
    finally:
        if demo.poll() is None:
            demo.kill()
    assert demo.returncode == 128 + number
    for pid in started:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert list(tmp_path.glob("duemq-demo-*")) == []
