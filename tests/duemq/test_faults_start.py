"""A broker that starts on damage: it repairs and reports it, or ends with one line that states
what to do and the exit code of a damaged store."""

from __future__ import annotations

import asyncio
import fcntl
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import uvloop

from duemq.cli.exits import Exit, exit_code
from duemq_common.clock import FakeClock
from duemq_common.errors import DueMQError
from tests.duemq.test_faults_disk import level_properties, rest
from tests.support.loopback_broker import bodies_of, compile_kernels, loopback, properties_of, send
from tests.support.raw_connection import RawPeer

COUNT = 40
MADE_MS = 1_700_000_000_000


def make_store(root: Path) -> None:
    """Leave a store with plain, delivered and waiting messages, cleanly stopped."""
    clock = FakeClock(MADE_MS)

    async def main() -> None:
        async with loopback(root, clock=clock) as broker:
            await compile_kernels(broker)
            async with await RawPeer.connect(broker.port) as peer:
                for number in range(COUNT):
                    level = level_properties(1 if number % 2 else 2) + f"KEYS\x01k{number}\x02"
                    assert (await send(peer, b"%d" % number, opaque=1, properties=level)).code == 0
            clock.advance(1_000)
            await rest(broker)
            broker.parts.persist()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


def start(root: Path) -> list[bytes]:
    """Start on the store, let everything come due, return what arrived."""
    clock = FakeClock(MADE_MS + 10_000_000)

    async def main() -> list[bytes]:
        async with loopback(root, clock=clock) as broker:
            await rest(broker)
            async with await RawPeer.connect(broker.port) as peer:
                assert (await send(peer, b"new", opaque=1, topic="Other")).code == 0
            return bodies_of(broker)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main())


def write(name: str, data: bytes, *, backup: bytes | None = None) -> Callable[[Path], None]:
    def damage(root: Path) -> None:
        (root / name).write_bytes(data)
        if backup is not None:
            (root / (name + ".bak")).write_bytes(backup)

    return damage


def cut(pattern: str, size: int) -> Callable[[Path], None]:
    """Give the last file of a pattern another size."""

    def damage(root: Path) -> None:
        os.truncate(sorted(root.glob(pattern))[-1], size)

    return damage


def remove(pattern: str) -> Callable[[Path], None]:
    def damage(root: Path) -> None:
        for path in root.glob(pattern):
            path.unlink()

    return damage


def scribble(pattern: str, at: int, data: bytes) -> Callable[[Path], None]:
    def damage(root: Path) -> None:
        for path in root.glob(pattern):
            with path.open("r+b") as file:
                file.seek(at)
                file.write(data)

    return damage


def both(*damages: Callable[[Path], None]) -> Callable[[Path], None]:
    def damage(root: Path) -> None:
        for each in damages:
            each(root)

    return damage


TORN = b'{"dataVersion":{"counter":1'
GARBAGE = b"\x00\xff\x00garbage"
REPAIRED = {
    "torn delayOffset.json": write("config/delayOffset.json", TORN, backup=TORN),
    "empty delayOffset.json": write("config/delayOffset.json", b"", backup=b""),
    "garbage in delayOffset.json": write("config/delayOffset.json", GARBAGE, backup=GARBAGE),
    "offsets of a wrong type": write(
        "config/delayOffset.json", b'{"offsetTable":{"1":"x"}}', backup=b"[]"
    ),
    "negative offsets": write(
        "config/delayOffset.json", b'{"offsetTable":{1:-5},"commitLogOffset":0}', backup=b"7"
    ),
    "delayOffset.json is gone": remove("config/delayOffset.json*"),
    "torn delayLevels.json": write("config/delayLevels.json", TORN, backup=TORN),
    "both of the level service": both(
        write("config/delayOffset.json", TORN, backup=TORN),
        write("config/delayLevels.json", GARBAGE, backup=GARBAGE),
    ),
    "torn topics.json with a backup": write("config/topics.json", TORN),
    "mark of garbage": write("config/duemq.mark", GARBAGE * 500),
    "mark is gone": remove("config/duemq.mark"),
    "short checkpoint": write("checkpoint", b"\0" * 7),
    "garbage checkpoint": write("checkpoint", GARBAGE * 500),
    "abort file of a dead broker": write("abort", b""),
    "consume queues are gone": remove("consumequeue/*/*/*"),
    "schedule queues are gone": remove("consumequeue/SCHEDULE_TOPIC_XXXX/*/*"),
    "empty consume queue file": cut("consumequeue/SCHEDULE_TOPIC_XXXX/0/*", 0),
    "index is gone": remove("index/*"),
    "empty index file": cut("index/*", 0),
    "index header of garbage": scribble("index/*", 0, b"\xff" * 40),
    "torn tail behind the log": both(
        scribble("commitlog/*", 900_000, GARBAGE), write("abort", b"1")
    ),
    "stray directory": lambda root: (root / "consumequeue" / "stray" / "x").mkdir(parents=True),
}


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("pristine") / "store"
    make_store(root)
    start(Path(_copy(root, root.parent / "once")))  # kernels of a start
    return root


def _copy(source: Path, target: Path) -> Path:
    subprocess.run(["cp", "-r", "--sparse=always", str(source), str(target)], check=True)
    return target


@pytest.mark.sampled
@pytest.mark.parametrize("damage", REPAIRED.values(), ids=REPAIRED.keys())
def test_damage_is_repaired_and_each_message_is_delivered_once(
    pristine: Path, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    root = _copy(pristine, tmp_path / "store")
    damage(root)
    arrived = start(root)
    assert sorted(arrived) == sorted(b"%d" % number for number in range(COUNT))
    assert sorted(start(root)) == sorted(arrived)


REFUSED = {
    "torn topics.json and backup": (
        write("config/topics.json", TORN, backup=TORN),
        "topics.json",
    ),
    "torn subscriptionGroup.json": (
        write("config/subscriptionGroup.json", TORN, backup=GARBAGE),
        "subscriptionGroup.json",
    ),
    "torn consumerOffset.json": (
        write("config/consumerOffset.json", TORN, backup=GARBAGE),
        "consumerOffset.json",
    ),
    "log file of a wrong size": (cut("commitlog/*", 5_000), "mappedFileSizeCommitLog"),
    "consume queue file of a wrong size": (
        cut("consumequeue/T/1/*", 500),
        "mappedFileSizeConsumeQueue",
    ),
    "index file of a wrong size": (cut("index/*", 500), "index"),
    "stray file in the log": (write("commitlog/notes.txt", b"hello"), "Move it"),
    "stray file in a queue": (write("consumequeue/T/1/notes.txt", b"hello"), "Move it"),
    "stray file in the index": (write("index/notes.txt", b"hello"), "Move it"),
}


@pytest.mark.parametrize(("damage", "reason"), REFUSED.values(), ids=REFUSED.keys())
def test_damage_that_needs_a_human_ends_the_start_with_one_line(
    pristine: Path, tmp_path: Path, damage: Callable[[Path], None], reason: str
) -> None:
    root = _copy(pristine, tmp_path / "store")
    damage(root)
    before = sorted((p, p.stat().st_size) for p in (root / "commitlog").iterdir())
    with pytest.raises(DueMQError) as caught:
        start(root)
    text = str(caught.value)
    assert reason in text
    assert str(root) in text
    assert "\n" not in text
    assert exit_code(caught.value) == Exit.STORE
    assert sorted((p, p.stat().st_size) for p in (root / "commitlog").iterdir()) == before


# -- the command -----------------------------------------------------------------------------------


def command(root: Path, **changes: str) -> subprocess.CompletedProcess[str]:
    """Run `duemq broker` until it ends by itself."""
    file = root.parent / "broker.conf"
    values = properties_of(root, **changes)
    file.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
    arguments = [sys.executable, "-m", "duemq", "broker", "-c", str(file)]
    return subprocess.run(arguments, check=False, capture_output=True, text=True, timeout=300)


def last_line(done: subprocess.CompletedProcess[str]) -> str:
    assert "Traceback" not in done.stderr
    return done.stderr.strip().splitlines()[-1]


def test_a_port_in_use_ends_with_code_2(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = command(tmp_path / "store", listenPort=port)
    assert done.returncode == Exit.USAGE
    assert port in last_line(done)
    assert "listenPort" in last_line(done)
    assert not (tmp_path / "store").exists()  # nothing was touched


def test_a_store_locked_by_another_ends_with_code_5(tmp_path: Path) -> None:
    root = tmp_path / "store"
    root.mkdir()
    with (root / "lock").open("w+b") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
        done = command(root)
    assert done.returncode == Exit.STORE
    assert "another broker uses this store" in last_line(done)


def test_a_damaged_log_ends_with_code_5(tmp_path: Path) -> None:
    root = tmp_path / "store"
    (root / "commitlog").mkdir(parents=True)
    for base in (0, 1 << 20):
        (root / "commitlog" / f"{base:020d}").write_bytes(struct.pack("!i", 5))
    done = command(root)
    assert done.returncode == Exit.STORE
    assert "mappedFileSizeCommitLog" in last_line(done)


def test_bad_levels_end_with_code_2(tmp_path: Path) -> None:
    done = command(tmp_path / "store", messageDelayLevel="1s soon")
    assert done.returncode == Exit.USAGE
    assert "'soon'" in last_line(done)
