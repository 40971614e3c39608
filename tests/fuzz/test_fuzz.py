"""Fuzzed frames at a real broker, a friend beside them: it serves, and what it uses is bounded."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from message_store.verify import verify_store
from tests.fuzz.inputs import LENGTHS, SENTINEL, Chunk, Inputs, sentinel
from tests.fuzz.target import MIB, Target, attacked
from tests.support.duemq_server import ROOT
from tests.support.free_ports import LOOPBACK
from tests.support.wait_until import until

ATTACKERS = 8
ANSWER_S = 20.0
GROWTH_MAX_BYTES = 200 * MIB
SLOWER_MAX = 200  # how much slower the friend's median may be under attack
UNFORESEEN = re.compile(r"^(?:\w+\.)*(\w+(?:Error|Exception)\b[^\n]{0,80})", re.M)
MARK = b'"opaque":%d' % SENTINEL


@contextmanager
def friend_of(target: Target) -> Iterator[dict[str, Any]]:
    """Run a friend beside the block; what it saw is there afterwards."""
    seen: dict[str, Any] = {}
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.fuzz.friend", str(target.port)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
    )  # fmt: skip
    try:
        yield seen
        out, _ = process.communicate("", timeout=120)
        seen |= json.loads(out)
        seen["took_ms"].sort()
    finally:
        process.kill()
        process.wait()


async def throw(port: int, chunk: Chunk) -> bool:
    """Send one chunk over a connection of its own; return whether all of it was answered for."""
    reader, writer = await asyncio.open_connection(LOOPBACK, port)
    try:
        async with asyncio.timeout(ANSWER_S):
            if chunk.kind == LENGTHS:
                writer.write(chunk.data)
                await writer.drain()
                return False
            writer.write(chunk.data + sentinel())
            tail = b""
            while data := await reader.read(1 << 16):
                if MARK in (tail := tail[-64:] + data):
                    return True
    except ConnectionError:
        pass
    except TimeoutError as error:
        raise AssertionError(f"no answer to {chunk.kind}: {chunk.data!r}") from error
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
    return False


async def attack(port: int, inputs: Inputs, count: int) -> Counter[str]:
    """Throw `count` inputs from several connections at a time; return how many of each kind."""
    chunks, thrown = inputs.chunks(count), Counter[str]()

    async def attacker() -> None:
        for chunk in chunks:
            taken = await throw(port, chunk)
            thrown[chunk.kind] += chunk.count
            thrown["answered to the end" if taken else "closed before the end"] += chunk.count

    async with asyncio.TaskGroup() as tasks:
        for _ in range(ATTACKERS):
            tasks.create_task(attacker())
    return thrown


def shown(name: str, seen: dict[str, Any]) -> str:
    took_ms = seen["took_ms"]
    points = ((50, "p50"), (99, "p99"), (100, "worst"))
    figures = (f"{text} {took_ms[(len(took_ms) - 1) * at // 100]:.1f} ms" for at, text in points)
    return f"{name}: {len(took_ms)} calls, {', '.join(figures)}"


@pytest.mark.finding("E6")
def test_fuzzed_frames_harm_neither_the_broker_nor_its_friend(
    tmp_path: Path, fuzz_inputs: int, seed: int
) -> None:
    sys.stdout.write(f"--seed={seed} --fuzz-inputs={fuzz_inputs}\n")
    inputs = Inputs(seed)
    with attacked(tmp_path, recallMessageEnable="true") as target:
        asyncio.run(attack(target.port, inputs, 2_000))  # kernels and tables are there now
        with friend_of(target) as alone:
            pass  # the friend ends after its least number of calls
        memory, sockets = target.anonymous_bytes, target.sockets
        with friend_of(target) as beside:
            thrown = asyncio.run(attack(target.port, inputs, fuzz_inputs))
        target.child.must_run()
        grown = target.anonymous_bytes - memory
        until(
            lambda: target.sockets <= sockets,
            seconds=60, what="descriptors of connections are returned",
        )  # fmt: skip
        failed = Counter(UNFORESEEN.findall(target.log))
    lines = [
        shown("friend alone", alone), shown("friend beside", beside), f"thrown: {dict(thrown)}",
        f"memory {grown / MIB:+.1f} MiB", f"unforeseen errors: {failed.most_common(20)}",
    ]  # fmt: skip
    sys.stdout.write("\n".join(lines) + "\n")
    assert not failed
    assert not alone["errors"]
    assert not beside["errors"]
    assert grown < GROWTH_MAX_BYTES
    middle = len(beside["took_ms"]) // 2
    assert beside["took_ms"][middle] < SLOWER_MAX * alone["took_ms"][len(alone["took_ms"]) // 2]
    report = verify_store(tmp_path / "store")
    assert [found for found in report.findings if found.severity != "note"] == []
