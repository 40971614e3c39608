"""Event loop in a thread: what happens to the work of other threads when it ends."""

from __future__ import annotations

import asyncio
import threading

import pytest

from duemq.client import Closed
from duemq.client.blocking import LoopThread

JOIN_S = 60.0


def test_work_of_another_thread_ends_with_the_loop() -> None:
    thread, begun, errors = LoopThread(), threading.Event(), list[Closed]()

    async def wait() -> None:
        begun.set()
        await asyncio.get_running_loop().create_future()

    def work() -> None:
        with pytest.raises(Closed, match="the client is closed") as raised:
            thread.run(wait())
        errors.append(raised.value)

    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    assert begun.wait(JOIN_S)
    thread.close()
    worker.join(JOIN_S)
    assert len(errors) == 1
