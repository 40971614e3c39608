"""Sends of DueMQ's Python client and those of Apache's clients for Go and C++, in one run.

    python -m benchmarks.clients                          all clients against a new broker
    python -m benchmarks.clients --messages 100000 --only duemq,go

Each client is a process that sends messages of 100 bytes asynchronously. A run with one message is
subtracted, so start and stop do not count. The programs for Go and C++ are those of
`tests/interop`: they print a line for each response, and that for C++ is driven by Python.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from duemq.client import Message, Producer
from tests.interop.programs import CLIENTS, ROOT, go_program
from tests.support.duemq_server import DueMQ

BODY_BYTES, IN_FLIGHT = 100, 256
TOPIC = "bench_clients"
Command = Callable[[str, int], list[str]]


@dataclass(frozen=True, slots=True)
class Run:
    """Time and processor time of one process in seconds."""

    wall_s: float
    cpu_s: float


def main(words: list[str]) -> int:
    """Run the clients in turn and print a line for the best run of each."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--messages", type=int, default=60_000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--only", default=",".join(COMMANDS))
    options = parser.parse_args(words)
    names = options.only.split(",")
    with tempfile.TemporaryDirectory() as directory, DueMQ(Path(directory)) as server:
        namesrv = server.namesrv_address
        best: dict[str, Run] = {}
        for _ in range(options.repeat):
            for name in names:
                run = measured(COMMANDS[name], namesrv, options.messages)
                best[name] = min(run, best.get(name, run), key=lambda each: each.cpu_s)
    for name, run in best.items():
        rate, cpu_us = options.messages / run.wall_s, run.cpu_s / options.messages * 1e6
        print(f"{name:6} {rate:10,.0f} messages/s {cpu_us:8.1f} us of processor time a message")
    return 0


def measured(command: Command, namesrv: str, messages: int) -> Run:
    """Return what the messages after the first one take."""
    one, all_of_them = (timed(command(namesrv, count)) for count in (1, messages + 1))
    return Run(all_of_them.wall_s - one.wall_s, all_of_them.cpu_s - one.cpu_s)


def timed(words: list[str]) -> Run:
    """Return the times of a process that succeeds."""
    start_s = time.perf_counter()
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, words)
    return Run(time.perf_counter() - start_s, usage.ru_utime + usage.ru_stime)


def apache_words(namesrv: str, count: int) -> list[str]:
    """Return the arguments of a program of `tests/interop` that sends messages."""
    options = {
        "namesrv": namesrv,
        "topic": TOPIC,
        "mode": "async",
        "n": count,
        "body-size": BODY_BYTES,
    }
    return [
        "produce",
        *(text for name, value in options.items() for text in (f"--{name}", str(value))),
    ]


def duemq_command(namesrv: str, count: int) -> list[str]:
    """Return the command of DueMQ's client."""
    return [sys.executable, "-m", "benchmarks.clients", "send", namesrv, str(count)]


def go_command(namesrv: str, count: int) -> list[str]:
    """Return the command of Apache's client for Go."""
    return [str(go_program(CLIENTS / "go")), *apache_words(namesrv, count)]


def cpp_command(namesrv: str, count: int) -> list[str]:
    """Return the command of Apache's client for C++."""
    program = [sys.executable, str(CLIENTS / "cpp_client.py")]
    return ["env", f"PYTHONPATH={ROOT}", *program, *apache_words(namesrv, count)]


async def send(namesrv: str, count: int) -> None:
    """Send messages with IN_FLIGHT in flight."""
    async with Producer(namesrv) as producer:
        await producer.send(Message(TOPIC, b"x" * BODY_BYTES))
        left = iter(range(count - 1))

        async def sender() -> None:
            for _ in left:
                await producer.send(Message(TOPIC, b"x" * BODY_BYTES))

        await asyncio.gather(*(sender() for _ in range(IN_FLIGHT)))


COMMANDS: dict[str, Command] = {"duemq": duemq_command, "go": go_command, "cpp": cpp_command}

if __name__ == "__main__":
    if sys.argv[1:2] == ["send"]:
        import uvloop

        uvloop.run(send(sys.argv[2], int(sys.argv[3])))
    else:
        raise SystemExit(main(sys.argv[1:]))
