"""Thread of the ledger's writer."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from duemq_common.ledger.engine import default_url
from tests.duemq_common.ledger.test_writer import REACHED_S_MAX, Rig, play


def test_one_thread_runs_all_calls_and_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`Thread.start` waits for the thread, which takes long on a busy machine."""
    started: list[threading.Thread] = []
    start = threading.Thread.start

    def counted(thread: threading.Thread) -> None:
        started.append(thread)
        start(thread)

    async def steps(rig: Rig) -> None:
        for _ in range(3):
            rig.step()
            await rig.written()

    monkeypatch.setattr("duemq_common.ledger.writer.Thread.start", counted)
    play(Rig(default_url(tmp_path)), steps)
    (thread,) = started
    thread.join(REACHED_S_MAX)
    assert not thread.is_alive()
