"""What a replica copies apart from the log is never ahead of its log."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from duemq.net.client import RemotingClient
from duemq.replication.slave_synchronize import INTERVAL_MS, SHARE, SlaveSynchronize
from duemq_common import json_dialect
from duemq_common.clock import FakeClock
from duemq_common.codes import RequestCode, ResponseCode
from duemq_common.errors import PeerError
from duemq_common.request import Request, Response
from message_store.replication.truncation import truncate_store
from message_store.retention.pins import UNKNOWN
from message_store.store import MessageStore
from schedule_service.recovery import Saved, encode_saved
from tests.message_store.replication.test_raw_append import fill, log_of
from tests.support.stores import open_store, small_config

STOP_S_MAX = 60.0
TURNS = 50
OURS = json_dialect.loads(encode_saved(Saved({1: 5}, log_offset=300, generation=7)))


class Master:
    """A broker that answers from a table; its log has the length that a test sets."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock, self.address = clock, ""
        self.responses: dict[int, Any] = {
            RequestCode.GET_ALL_TOPIC_CONFIG: {"topics": 1},
            RequestCode.GET_ALL_CONSUMER_OFFSET: {"offsets": 1},
            RequestCode.GET_ALL_DELAY_OFFSET: {"offsetTable": {"1": 5}},
        }
        self.unknown: dict[int, int] = {
            RequestCode.GET_VIEW: 3,
            RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: 3,
        }
        self.bounds = [0, 0]
        self.requested: list[int] = []
        self.slow_ms = 0
        self.hangs: asyncio.Future[None] | None = None

    def connect(self, address: str) -> Master:
        self.address = address
        return self

    async def call(self, request: Request, *, timeout_s: float) -> Response:
        self.requested.append(int(request.code))
        self.clock.advance(self.slow_ms)
        if self.hangs is not None:
            await self.hangs
        if code := self.unknown.get(request.code, 0):
            return Response(code, "not supported")
        first, end = map(str, self.bounds)
        bounds = {"table": {"commitLogMinOffset": first, "commitLogMaxOffset": end}}
        return Response(body=json.dumps(self.responses.get(request.code, bounds)).encode())

    def stop(self) -> None:
        if self.hangs is not None:
            self.hangs.set_exception(ConnectionResetError("stopped"))

    async def close(self) -> None:
        pass

    @property
    def copies(self) -> int:
        return self.requested.count(RequestCode.GET_ALL_DELAY_OFFSET)


class Setting:
    def __init__(self, store: MessageStore, clock: FakeClock) -> None:
        self.store, self.clock, self.master = store, clock, Master(clock)
        self.tables: list[Any] = []
        self.progress: list[Any] = []
        self.modes: list[Any] = []
        self.replace_topics: Any = self.tables.append
        connect: Any = self.master.connect
        self.synchronize = SlaveSynchronize(
            {
                RequestCode.GET_ALL_TOPIC_CONFIG: self.take_topics,
                RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: self.modes.append,
            },
            {RequestCode.GET_ALL_CONSUMER_OFFSET: self.progress.append},
            store,
            clock,
            connect,
        )

    def take_topics(self, table: Any) -> None:
        self.replace_topics(table)

    def delay_offsets(self) -> Any:
        return self.config("delayOffset.json")

    def config(self, name: str) -> Any:
        """Return what a file of the configuration holds, None without it."""
        path = self.store.config_path(name)
        return json_dialect.loads(path.read_text()) if path.exists() else None

    async def pass_ms(self, step_ms: int) -> None:
        """Let time pass, and everything happen that can."""
        await self.settle()
        end_ms = self.clock.now_ms() + step_ms
        while self.clock.now_ms() < end_ms:
            self.clock.advance(min(20, end_ms - self.clock.now_ms()))
            await self.settle()

    async def settle(self) -> None:
        for _ in range(TURNS):
            await asyncio.sleep(0)
        await asyncio.to_thread(self.store.flush)
        for _ in range(TURNS):
            await asyncio.sleep(0)
        await asyncio.get_running_loop().run_in_executor(None, lambda: None)

    async def until_taken(self, count: int) -> None:
        """Return once so many copies were taken; the thread that writes files needs a while."""
        for _ in range(1_000):
            if self.synchronize.synchronized_ms is not None and len(self.progress) >= count:
                return
            await self.settle()
        raise AssertionError("nothing was taken")


@asynccontextmanager
async def synchronizing(root: Path, **changes: Any) -> AsyncIterator[Setting]:
    # One thread: `settle` returns after all writes of files that began before it.
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    clock = FakeClock()
    with open_store(root, clock, **changes) as store:
        setting = Setting(store, clock)
        setting.synchronize.follow("master:1")
        task = asyncio.create_task(setting.synchronize.run())
        yield setting
        setting.synchronize.stop()
        async with asyncio.timeout(STOP_S_MAX):
            await task


def append(store: MessageStore, log: bytes) -> None:
    at = store.max_offset
    store.append_raw(at, np.frombuffer(log[at:], np.uint8))


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    with open_store(tmp_path_factory.mktemp("master")) as master:
        fill(master, 50)
        return log_of(master)


@pytest.mark.parametrize("members", [{}, OURS], ids=["Apache", "ours"])
def test_progress_is_taken_when_the_log_is_there(
    tmp_path: Path, log: bytes, members: dict[str, Any]
) -> None:
    async def main() -> None:
        async with synchronizing(tmp_path) as setting:
            setting.master.responses[RequestCode.GET_ALL_DELAY_OFFSET] |= members
            setting.master.bounds = [0, len(log)]
            await setting.pass_ms(3_000)
            assert setting.tables == [{"topics": 1}]
            assert (setting.progress, setting.delay_offsets()) == ([], None)
            assert setting.synchronize.first_needed is UNKNOWN
            append(setting.store, log)
            await setting.pass_ms(40)
            await setting.until_taken(1)
            assert setting.progress == [{"offsets": 1}]
            assert setting.synchronize.first_needed == 0  # type: ignore[comparison-overlap]
            found = setting.delay_offsets()
            assert found["offsetTable"] == {1: 5}
            assert found.get("logGeneration") == (0 if members else None)  # of this log

    asyncio.run(main())


def test_a_stop_does_not_wait_for_a_master_that_hangs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with synchronizing(tmp_path) as setting:
            setting.master.hangs = asyncio.get_running_loop().create_future()
            await setting.pass_ms(2 * INTERVAL_MS)
            requests = len(setting.master.requested)
            setting.synchronize.stop()
            await setting.settle()
            assert len(setting.master.requested) == requests == 1
            async with asyncio.timeout(STOP_S_MAX):
                with pytest.raises(ConnectionAbortedError):
                    await setting.synchronize.first_offset()
            setting.master.hangs = None
        assert "cannot copy" not in caplog.text  # a stop is not a failure

    asyncio.run(main())


def test_progress_names_the_generation_of_this_log(tmp_path: Path, log: bytes) -> None:
    with open_store(tmp_path) as store:
        fill(store, 3)
    truncate_store(small_config(tmp_path), FakeClock(), 0)

    async def main() -> None:
        async with synchronizing(tmp_path) as setting:
            setting.master.responses[RequestCode.GET_ALL_DELAY_OFFSET] |= OURS
            append(setting.store, log)
            await setting.pass_ms(1_000)
            await setting.until_taken(1)
            assert setting.delay_offsets()["logGeneration"] == 1

    asyncio.run(main())


def test_only_what_has_changed_is_taken_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with synchronizing(tmp_path) as setting:
            await setting.until_taken(1)
            await setting.pass_ms(3 * INTERVAL_MS)
            assert setting.master.copies >= 3
            setting.master.responses[RequestCode.GET_ALL_CONSUMER_OFFSET] = {"offsets": 2}
            setting.master.bounds = [500, 0]
            await setting.pass_ms(2 * INTERVAL_MS)
            await setting.until_taken(2)
            assert setting.tables == [{"topics": 1}]
            assert setting.progress == [{"offsets": 1}, {"offsets": 2}]
            assert setting.synchronize.first_needed == 500

    asyncio.run(main())


def test_a_slow_master_is_asked_less_often(tmp_path: Path) -> None:
    async def main() -> None:
        async with synchronizing(tmp_path) as setting:
            setting.master.slow_ms = 100
            await setting.until_taken(1)
            requested_ms = 6 * setting.master.slow_ms  # requests of one copy
            await setting.pass_ms(SHARE * requested_ms - 500)
            assert setting.master.copies == 1
            await setting.pass_ms(1_000)
            assert setting.master.copies == 2

    asyncio.run(main())


def test_another_master_ends_the_wait_for_the_log(tmp_path: Path) -> None:
    async def main() -> None:
        async with synchronizing(tmp_path) as setting:
            setting.master.bounds = [0, 1 << 40]
            await setting.pass_ms(100)
            setting.master.bounds = [0, 0]
            setting.synchronize.follow("other:1")
            await setting.until_taken(1)
            assert setting.master.address == "other:1"

    asyncio.run(main())


ORDER = {"table": {"T@g": {"0": {"o": [4, 1], "popTime": 9, "i": 60_000, "l": 9, "cm": 1}}}}
MODES: dict[str, Any] = {"messageRequestModeMap": {}}


def test_state_of_pops_is_copied(tmp_path: Path, log: bytes) -> None:
    """Modes come as they are; orderly pops, requested before the offsets, once the log is here."""

    async def main() -> None:
        async with synchronizing(tmp_path) as setting:
            master = setting.master
            master.unknown.clear()
            master.responses[RequestCode.GET_VIEW] = ORDER
            master.responses[RequestCode.GET_ALL_MESSAGE_REQUEST_MODE] = MODES
            master.bounds = [0, len(log)]
            setting.store.truncations.record_loss(0)
            await setting.pass_ms(3_000)
            assert setting.modes == [MODES]
            assert setting.config("consumerOrderInfo.json") is None
            append(setting.store, log)
            await setting.pass_ms(40)
            await setting.until_taken(1)
            assert setting.config("consumerOrderInfo.json") == ORDER
            truncations = setting.store.truncations
            assert truncations.followed("consumerOrderInfo.json") == truncations.generation == 1
            requested = master.requested
            offsets = requested.index(RequestCode.GET_ALL_CONSUMER_OFFSET)
            assert requested.index(RequestCode.GET_VIEW) < offsets

    asyncio.run(main())


@pytest.mark.parametrize("view", [3, 17], ids=["no such code", "no such view"])
def test_a_master_without_that_state_is_copied_all_the_same(
    tmp_path: Path, log: bytes, view: int
) -> None:
    async def main() -> None:
        async with synchronizing(tmp_path) as setting:
            setting.master.unknown[RequestCode.GET_VIEW] = view
            append(setting.store, log)
            await setting.pass_ms(40)
            await setting.until_taken(1)
            assert setting.synchronize.failure == ""
            assert setting.modes == []
            assert setting.config("consumerOrderInfo.json") is None

    asyncio.run(main())


@pytest.mark.parametrize("offsets", [[], [5], "x", None])
def test_a_malformed_table_of_levels_is_a_failure(tmp_path: Path, offsets: object) -> None:
    async def main() -> None:
        async with synchronizing(tmp_path) as setting:
            responses = setting.master.responses
            responses[RequestCode.GET_ALL_DELAY_OFFSET] = {"offsetTable": offsets}
            await setting.pass_ms(100)
            assert "offsetTable of master:1 is not a JSON object" in setting.synchronize.failure
            assert setting.delay_offsets() is None
            responses[RequestCode.GET_ALL_DELAY_OFFSET] = {"offsetTable": {"1": 6}}
            await setting.pass_ms(2 * INTERVAL_MS)
            assert setting.delay_offsets() == {"offsetTable": {1: 6}}

    asyncio.run(main())


def test_a_malformed_address_of_the_master_is_a_failure(tmp_path: Path) -> None:
    """Also of the request for its configuration, by which a connection for the log begins."""

    async def main() -> None:
        with open_store(tmp_path) as store:
            synchronize = SlaveSynchronize({}, {}, store, FakeClock(), RemotingClient)
            synchronize.follow("nowhere")
            with pytest.raises(PeerError, match="'nowhere' is not host:port"):
                await synchronize.configuration()

    asyncio.run(main())


def test_malformed_orderly_pops_are_not_written(tmp_path: Path, log: bytes) -> None:
    async def main() -> None:
        async with synchronizing(tmp_path) as setting:
            setting.master.unknown.clear()
            setting.master.responses[RequestCode.GET_VIEW] = {"table": {"no place": {}}}
            setting.master.responses[RequestCode.GET_ALL_MESSAGE_REQUEST_MODE] = MODES
            append(setting.store, log)
            await setting.pass_ms(2_000)
            assert "'no place' is not topic@group" in setting.synchronize.failure
            assert setting.config("consumerOrderInfo.json") is None

    asyncio.run(main())


def test_a_master_that_does_not_respond_is_reported_as_such(tmp_path: Path) -> None:
    async def main() -> None:
        async with synchronizing(tmp_path) as setting:
            setting.master.hangs = asyncio.get_running_loop().create_future()
            setting.master.hangs.set_exception(TimeoutError())
            await setting.pass_ms(2_000)
            assert setting.synchronize.failure == "no response (TimeoutError)"
            setting.master.hangs = None

    asyncio.run(main())


def test_a_master_with_accounts_names_the_key_that_is_missing(tmp_path: Path) -> None:
    async def main() -> None:
        async with synchronizing(tmp_path) as setting:
            setting.master.unknown[RequestCode.GET_ALL_TOPIC_CONFIG] = ResponseCode.NO_PERMISSION
            await setting.pass_ms(2_000)
            assert "with code 16: not supported. Set innerClient" in setting.synchronize.failure

    asyncio.run(main())


@pytest.mark.finding("3D1")
def test_a_malformed_table_stops_no_other_table(tmp_path: Path, log: bytes) -> None:
    def malformed(table: Any) -> None:
        raise ValueError("a row is malformed")

    async def main() -> None:
        async with synchronizing(tmp_path) as setting:
            setting.replace_topics = malformed
            setting.master.unknown.clear()
            setting.master.responses[RequestCode.GET_VIEW] = {"table": {"no place": {}}}
            append(setting.store, log)
            await setting.pass_ms(2_000)
            assert setting.progress
            assert setting.delay_offsets() is not None
            assert setting.synchronize.first_needed == setting.master.bounds[0]
            assert "GET_ALL_TOPIC_CONFIG: a row is malformed" in setting.synchronize.failure

    asyncio.run(main())
