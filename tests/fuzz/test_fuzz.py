"""Fuzzed frames against a real broker, which must keep serving a regular client."""

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
ANSWER_S = 120.0
GROWTH_MAX_BYTES = 200 * MIB
SLOWER_MAX = 200  # maximum ratio of the regular client's median latency to that without an attack
UNFORESEEN = re.compile(r"^(?:\w+\.)*(\w+(?:Error|Exception)\b[^\n]{0,80})", re.M)
MARK = b'"opaque":%d' % SENTINEL


@contextmanager
def regular_client(target: Target) -> Iterator[dict[str, Any]]:
    """Run a regular client while the block is active; yield its results, filled at the end."""
    seen: dict[str, Any] = {}
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.fuzz.regular_client", str(target.port)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    try:
        yield seen
        out, _ = process.communicate("", timeout=120)
        seen |= json.loads(out)
        seen["took_ms"].sort()
    finally:
        process.kill()
        process.wait()


async def send_chunk(port: int, chunk: Chunk) -> bool:
    """Send a chunk over a new connection; return whether the broker processed all of it."""
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
    """Send `count` inputs over concurrent connections; return their numbers by kind."""
    chunks, counts = inputs.chunks(count), Counter[str]()

    async def attacker() -> None:
        for chunk in chunks:
            taken = await send_chunk(port, chunk)
            counts[chunk.kind] += chunk.count
            counts["answered to the end" if taken else "closed before the end"] += chunk.count

    async with asyncio.TaskGroup() as tasks:
        for _ in range(ATTACKERS):
            tasks.create_task(attacker())
    return counts


def shown(name: str, seen: dict[str, Any]) -> str:
    took_ms = seen["took_ms"]
    points = ((50, "p50"), (99, "p99"), (100, "worst"))
    figures = (f"{text} {took_ms[(len(took_ms) - 1) * at // 100]:.1f} ms" for at, text in points)
    return f"{name}: {len(took_ms)} calls, {', '.join(figures)}"


@pytest.mark.finding("E6")
def test_fuzzed_frames_harm_neither_the_broker_nor_other_clients(
    tmp_path: Path, fuzz_inputs: int, seed: int
) -> None:
    sys.stdout.write(f"--seed={seed} --fuzz-inputs={fuzz_inputs}\n")
    inputs = Inputs(seed)
    with attacked(tmp_path, recallMessageEnable="true") as target:
        asyncio.run(attack(target.port, inputs, 2_000))  # warm-up of kernels and tables
        with regular_client(target) as alone:
            pass  # it ends after the minimum number of calls
        memory, sockets = target.anonymous_bytes, target.sockets
        with regular_client(target) as attacked_client:
            counts = asyncio.run(attack(target.port, inputs, fuzz_inputs))
        target.child.must_run()
        grown = target.anonymous_bytes - memory
        until(
            lambda: target.sockets <= sockets,
            seconds=60,
            what="descriptors of connections are returned",
        )
        failed = Counter(UNFORESEEN.findall(target.log))
    lines = [
        shown("without an attack", alone),
        shown("under attack", attacked_client),
        f"sent: {dict(counts)}",
        f"memory {grown / MIB:+.1f} MiB",
        f"unforeseen errors: {failed.most_common(20)}",
    ]
    sys.stdout.write("\n".join(lines) + "\n")
    assert not failed
    assert not alone["errors"]
    assert not attacked_client["errors"]
    assert grown < GROWTH_MAX_BYTES
    middle = len(attacked_client["took_ms"]) // 2
    assert (
        attacked_client["took_ms"][middle]
        < SLOWER_MAX * alone["took_ms"][len(alone["took_ms"]) // 2]
    )
    report = verify_store(tmp_path / "store")
    assert [found for found in report.findings if found.severity != "note"] == []
