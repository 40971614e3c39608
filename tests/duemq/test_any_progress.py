"""Any values in each file of progress: a start loses, doubles and hurries nothing.

A store has delivered and pending level messages and timers, popped messages and transactions. One
file gets other values; the broker opens the store and delivers everything. The epochs of a former
master or of its successor get other values; the one copies the log of the other. PROGRESS_EXAMPLES
is the number of values that are tried in each file.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import struct
import zlib
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from duemq.broker.broker import Broker
from duemq.pop.names import REVIVE_GROUP, revive_topic
from duemq_common.clock import FakeClock
from duemq_common.errors import CorruptStore, StoreError
from duemq_common.json_dialect import backup_path, dumps, loads
from duemq_common.topics import HALF_TOPIC, OP_HALF_TOPIC, TRANSACTION_GROUP
from message_store.recovery import checkpoint
from message_store.replication.truncation import truncate_store
from tests.duemq.replication.test_autoswitch_pair import Pair, run
from tests.message_store.replication.test_raw_append import fill as fill_log
from tests.message_store.replication.test_raw_append import log_of
from tests.support.killed_copy import copy_as_killed
from tests.support.pop_client import PopClient, advance, rest, send
from tests.support.replica_rig import until
from tests.support.running_broker import BrokerClient, running, small
from tests.support.sparse_files import copy_used
from tests.support.stores import open_store, records_of, small_config
from timer_store.checkpoint.snapshot import Check, encode_check

EXAMPLES = int(os.environ.get("PROGRESS_EXAMPLES", "2"))
START_MS, INVISIBLE_MS = FakeClock().now_ms(), 30_000
LEVEL_MS = {1: 1_000, 4: 30_000, 5: 60_000}
COMMIT = {"producerGroup": "p", "commitOrRollback": 8, "fromTransactionCheck": "false"}
NUMBERS = st.one_of(
    st.integers(-3, 60),
    st.integers(0, 20_000),
    st.integers(-70_000, 70_000).map(START_MS.__add__),
    st.sampled_from([2**31, 2**63 - 1, -(2**63)]),
)
GARBAGE = st.binary(max_size=200)


@dataclass(slots=True)
class Sent:
    """Expectation of a store.

    Attributes:
        due_ms: Due time of each delayed message, by body.
        ends: Requests that commit the open transactions.
    """

    due_ms: dict[bytes, int] = field(default_factory=dict)
    ends: list[dict[str, object]] = field(default_factory=list)


def parts_of(broker: Broker, plugin: str) -> Any:
    """Return the components of a plugin."""
    found: Any = broker.plugins.plugins[plugin]
    return found.parts


async def send_delayed(remote: BrokerClient, clock: FakeClock, sent: Sent, count: int) -> None:
    """Send level messages and timers that are due in 1 s, 30 s and 60 s."""
    for number in range(count):
        for level, delay_ms in LEVEL_MS.items():
            body, due_ms = b"%d" % len(sent.due_ms), clock.now_ms() + delay_ms
            await send(remote, b"l" + body, topic="L", DELAY=str(level))
            await send(remote, b"t" + body, topic="L", TIMER_DELIVER_MS=str(due_ms + number))
            sent.due_ms |= {b"l" + body: due_ms, b"t" + body: due_ms + number}


async def send_half(remote: BrokerClient, key: str) -> dict[str, object]:
    """Send a half message; return the request that commits it."""
    half = await remote.send("X", key.encode(), TRAN_MSG="true", PGROUP="p", UNIQ_KEY=key)
    assert half.fields is not None
    return COMMIT | {
        "msgId": key,
        "transactionId": key,
        "commitLogOffset": int(half.fields["msgId"][-16:], 16),
        "tranStateTableOffset": half.fields["queueOffset"],
    }


async def fill(root: Path, killed: Path, count: int) -> Sent:
    """Create a store, and a copy of it as a killed process leaves it."""
    clock, sent = FakeClock(), Sent()
    async with running(small(root), clock=clock) as (broker, remote):
        client = PopClient(remote, clock)
        await broker.parts.topics.ensure("P", queues=1)
        await send(remote, *(b"p%d" % n for n in range(count)), topic="P")
        assert len(await client.pop("P", maxMsgNums=1, invisibleTime=1_000)) == 1
        await send_delayed(remote, clock, sent, count)
        ended, *sent.ends = [await send_half(remote, f"x{n}") for n in range(3)]
        assert (await remote.call(37, ended)).code == 0
        await advance(broker, clock, 2_500)  # p0 comes back to its retry topic
        first, *_ = await client.pop("P", maxMsgNums=3, invisibleTime=INVISIBLE_MS)
        assert (await client.ack(first)).code == 0
        await send_delayed(remote, clock, sent, 2)
        await rest(broker)
        broker.parts.persist()
        for plugin in ("schedule_service", "timer_store"):
            await parts_of(broker, plugin).keeper.persist()
        await advance(broker, clock, 1_500)
        copy_as_killed(root, killed)
    return sent


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Sent]:
    """Return a directory with a killed and a stopped store, and one of another broker."""
    home = tmp_path_factory.mktemp("base")
    sent = asyncio.run(fill(home / "clean", home / "killed", 5))
    asyncio.run(fill(home / "other", home / "other killed", 3))
    return home, sent


async def check(root: Path, sent: Sent) -> None:
    """Open the store, deliver everything, and compare it with what was sent."""
    clock = FakeClock(START_MS + 4_000)
    async with running(small(root), clock=clock) as (broker, remote):
        client = PopClient(remote, clock)
        for end in sent.ends:
            assert (await remote.call(37, end)).code == 0
        await advance(broker, clock, 20)
        popped = Counter({record.body: 0 for record in records_of(broker.store, "P")})
        for wait_ms in (0, INVISIBLE_MS + 1_000, 40_000):
            await advance(broker, clock, wait_ms, by_ms=5_000)
            await advance(broker, clock, 20, by_ms=10)
            while found := await client.pop("P", invisibleTime=600_000):
                popped.update(message.body for message in found)
                for message in found:
                    assert (await client.ack(message)).code == 0
            if not wait_ms:
                early = popped.total()
        levels = parts_of(broker, "schedule_service").service
        while not levels.is_idle:  # noqa: ASYNC110
            await asyncio.sleep(0)
        delivered = records_of(broker.store, "L")
        assert Counter(record.body for record in delivered) == dict.fromkeys(sent.due_ms, 1)
        for record in delivered:
            assert record.store_ms >= sent.due_ms[record.body]
        committed = Counter(record.body for record in records_of(broker.store, "X"))
        assert committed == {b"x0": 1, b"x1": 1, b"x2": 1}
        assert sorted(popped.values()) == [0] + [1] * (len(popped) - 1)
        assert early == len(popped) - 3


Edit = Callable[[Any, Path, Path], None]


def json_numbers(name: str) -> Edit:
    """Return an edit that replaces some numbers of a JSON file."""

    def edit(draw: Any, config: Path, _: Path) -> None:
        path = config / name
        value = loads(path.read_text())
        for place, key in draw(st.lists(st.sampled_from(_numbers(value)), min_size=1, max_size=6)):
            place[key] = draw(NUMBERS)
        path.write_text(dumps(value))

    return edit


def _numbers(value: Any) -> list[tuple[Any, Any]]:
    """Return container and key of each number in parsed JSON."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    found = []
    for key, item in list(items):
        if isinstance(item, dict | list):
            found += _numbers(item)
        elif isinstance(item, int) and not isinstance(item, bool) and key != "crc32":
            found.append((value, key))
    return found


def offsets_of(group: str, *topics: str) -> Edit:
    """Return an edit of the offsets of an internal group in consumerOffset.json."""

    def edit(draw: Any, config: Path, _: Path) -> None:
        path = config / "consumerOffset.json"
        value = loads(path.read_text())
        for topic in topics:
            table = value["offsetTable"].setdefault(f"{topic}@{group}", {})
            table |= draw(st.dictionaries(st.integers(0, 7), NUMBERS, min_size=1, max_size=3))
        path.write_text(dumps(value))

    return edit


def timercheck(draw: Any, config: Path, _: Path) -> None:
    numbers = draw(st.lists(NUMBERS, min_size=7, max_size=7))
    (config / "timercheck").write_bytes(encode_check(Check(*numbers)))


def apaches_levels(draw: Any, config: Path, _: Path) -> None:
    """Write delayOffset.json as an Apache broker does."""
    table = draw(st.dictionaries(st.sampled_from([1, 4, 5, 18]), NUMBERS))
    path = config / "delayOffset.json"
    path.write_text(dumps({"offsetTable": table}))
    backup_path(path).unlink(missing_ok=True)


def checkpoint_times(draw: Any, config: Path, _: Path) -> None:
    numbers = draw(st.lists(NUMBERS, min_size=6, max_size=6))
    path = config.parent / "checkpoint"
    path.write_bytes(struct.pack(">6q", *numbers) + path.read_bytes()[48:])


def mark(draw: Any, config: Path, _: Path) -> None:
    """Write other marks with valid checksums into both slots of duemq.mark."""
    path = config / "duemq.mark"
    data = bytearray(path.read_bytes())
    sequence, marks, boot_id = checkpoint.newest_marks(bytes(data))
    assert marks is not None
    for slot in (0, checkpoint.SLOT_BYTES):
        values = [draw(st.one_of(st.just(value), NUMBERS)) for value in marks]
        body = checkpoint.BODY.pack(sequence, *values, boot_id)
        data[slot : slot + len(body) + 4] = body + zlib.crc32(body).to_bytes(4, "little")
    path.write_bytes(data)


def garbage(name: str) -> Edit:
    """Return an edit that writes any bytes into a file, and removes its backup."""

    def edit(draw: Any, config: Path, _: Path) -> None:
        (config / name).write_bytes(draw(GARBAGE))
        backup_path(config / name).unlink(missing_ok=True)

    return edit


def foreign(*names: str) -> Edit:
    """Return an edit that takes files from another store."""

    def edit(draw: Any, config: Path, other: Path) -> None:
        for name in names:
            shutil.copy(other / name, config / name)

    return edit


TIMERS = ("duemq.timers.json", "timercheck")
EDITS: dict[str, Edit] = {
    "delayOffset.json": json_numbers("delayOffset.json"),
    "delayOffset.json of Apache": apaches_levels,
    "delayOffset.json of another store": foreign("delayOffset.json"),
    "timercheck": timercheck,
    "timercheck of another store": foreign("timercheck"),
    "timercheck as random bytes": garbage("timercheck"),
    "duemq.timers.json": json_numbers("duemq.timers.json"),
    "duemq.timers.json as random bytes": garbage("duemq.timers.json"),
    "timers of another store": foreign(*TIMERS),
    "checkpoint": checkpoint_times,
    "checkpoint of another store": foreign("../checkpoint"),
    "duemq.mark": mark,
    "duemq.mark of another store": foreign("duemq.mark"),
    "duemq.mark as random bytes": garbage("duemq.mark"),
    "transactions": offsets_of(TRANSACTION_GROUP, HALF_TOPIC, OP_HALF_TOPIC),
    "revivals": offsets_of(REVIVE_GROUP, revive_topic("DefaultCluster")),
    "consumerOffset.json of another store": foreign("consumerOffset.json"),
}


@pytest.mark.sampled
@pytest.mark.finding("3D4")
@pytest.mark.parametrize("name", EDITS)
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),  # an example takes a second
    suppress_health_check=list(HealthCheck),
)
@given(data=st.data(), base=st.sampled_from(["clean", "killed"]))
def test_any_values(
    stores: tuple[Path, Sent],
    tmp_path_factory: pytest.TempPathFactory,
    name: str,
    base: str,
    data: st.DataObject,
) -> None:
    home, sent = stores
    root = tmp_path_factory.mktemp("edited") / "broker"
    shutil.copytree(home / base, root, copy_function=copy_used)
    EDITS[name](data.draw, root / "store" / "config", home / "other" / "store" / "config")
    try:
        asyncio.run(check(root, sent))
    finally:
        shutil.rmtree(root)


FORKED = 20  # messages that both logs have
EPOCH_LINES = st.lists(
    st.tuples(
        st.one_of(st.integers(-1, 5), st.just(2**31 - 1)),
        st.one_of(st.integers(-(FORKED + 60) + 1, 0), NUMBERS),
    ),
    max_size=4,
)
"""Epoch and start offset of each line; a small negative offset is the index of a message."""


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the stores of a former master `a`, and of the master `b` that was its replica."""
    pair = Pair(tmp_path_factory.mktemp("logs"))

    async def work() -> None:
        with open_store(pair.root / "a") as master, open_store(pair.root / "b") as store:
            async with pair.master(master, 1) as address, pair.replica(store, address):
                fill_log(master, FORKED)
                await until(lambda: store.max_offset == master.max_offset)
            fill_log(master, 30, FORKED)  # alone
        pair.clock.advance(1_000)
        with open_store(pair.root / "b") as master:
            async with pair.master(master, 2):
                fill_log(master, 60, FORKED)

    run(work)
    return pair.root


async def join(pair: Pair) -> None:
    """Let `a` copy the log of `b`, truncating its own, until both are equal or it refuses to."""
    with open_store(pair.root / "b") as master:
        async with pair.master(master, 3) as address:
            for _ in range(3):
                with open_store(pair.root / "a") as store:
                    async with pair.replica(store, address) as client:
                        await until(
                            lambda: (
                                pair.truncations
                                or client.failure
                                or store.max_offset == master.max_offset
                            )
                        )
                        if not pair.truncations:
                            assert client.failure or log_of(store) == log_of(master)
                            return
                point = pair.truncations.pop()
                truncate_store(small_config(pair.root / "a"), pair.clock, point)
                pair.file("a").truncate_from(point)
    raise AssertionError("the log was truncated again and again")


@pytest.mark.finding("3D4")
@pytest.mark.parametrize("side", ["a", "b"])
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    suppress_health_check=list(HealthCheck),
)
@given(content=st.one_of(EPOCH_LINES, GARBAGE))
def test_any_epochs(
    logs: Path,
    tmp_path_factory: pytest.TempPathFactory,
    side: str,
    content: list[tuple[int, int]] | bytes,
) -> None:
    """The replica's log becomes that of the master, or is refused; the master's stays."""
    root = tmp_path_factory.mktemp("epochs") / "logs"
    shutil.copytree(logs, root)
    pair = Pair(root)
    with open_store(root / "b") as master:
        before = log_of(master)
        starts = [int(row["phys_offset"]) for rows in master.scan(0) for row in rows]
    path = pair.file(side).path
    if isinstance(content, list):
        lines = [(epoch, starts[at] if -len(starts) < at <= 0 else at) for epoch, at in content]
        text = "".join(f"{epoch}-{at}\n" for epoch, at in lines)
        content = f"{len(lines)}\n0\n{text}".encode()
    path.write_bytes(content)
    backup_path(path).unlink(missing_ok=True)
    with suppress(CorruptStore, StoreError):
        run(lambda: join(pair))
    with open_store(root / "b") as master:
        assert log_of(master) == before
    shutil.rmtree(root)
