"""`make demo`: a broker, a client, and a table of promised and actual delivery times.

demo -- starts   --> `duemq broker` (embedded name server, free ports, temporary store)
     -- sends    --> messages by level and by time, and consumes them
     -- cancels  --> one timer, by key, as `duemq timers cancel` does
     -- reads    --> the broker's log: the promised time of a level message is the store time of its
                     source record plus the delay of the level
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from duemq.cli.cache_home import use_writable_cache
from duemq.cli.exits import Exit, errors_become_exits, fail
from duemq.cli.kernels import AFTERWARDS, FIRST, compile_kernels, shown_progress
from duemq.cli.messages import time_text
from duemq.cli.output import console, notice, print_json
from duemq.client.client import Client
from duemq.client.decisions import PendingDecisions
from duemq.client.message import Message, MessageQueue, ReceivedMessage, time_of
from duemq.client.producer import Producer
from duemq.client.push_consumer import PushConsumer
from duemq.client.subscriptions import ConsumeFrom
from duemq_common.clock import SystemClock
from duemq_common.errors import DueMQError
from message_store.kernels.registry import is_complete, kernels_of
from message_store.log.record import Record, decode_record

if TYPE_CHECKING:
    from rich.table import Table

TOPIC, GROUP = "DueMQDemo", "duemq_demo"
LOG_FILE_BYTES = 1 << 24
RECORD_BYTES_MAX = 1 << 16  # maximum record of a demo message
DELAYS_MS = {1: 1_000, 2: 5_000, 3: 10_000}
EACH = 4
TIMER_DELAYS_MS = (1_234, 3_456, 6_789)
CANCELLED_KEY, CANCELLED_DELAY_MS = "timer-cancelled", 8_000  # before the last level is due
START_TIMEOUT_S = 300  # a first start compiles kernels
RUN_TIMEOUT_S = 120
LINGER_S = 2.0  # time for duplicates to arrive
STOP_TIMEOUT_S = 30
SIGNAL_EXIT = 128  # added to the signal number, as in shells
BROKER_CONF = """\
brokerName = demo
brokerIP1 = 127.0.0.1
bindAddress = 127.0.0.1
listenPort = 0
vipChannelEnable = false
embeddedNamesrvEnable = true
embeddedNamesrvPort = 0
metricsExporterType = DISABLE
storePathRootDir = {root}
mappedFileSizeCommitLog = {log_file_bytes}
maxHashSlotNum = 10000
maxIndexNum = 40000
defaultTopicQueueNums = 2
"""


@dataclass(slots=True)
class Line:
    """One message of the demo; times in ms since the epoch, 0 if unknown.

    Attributes:
        level: Delay level; 0 for a timer.
        exact: Whether the due time is known to the millisecond.
        cancelled: Whether the broker has confirmed its cancellation.
    """

    key: str
    level: int
    sent_ms: int
    promised_ms: int
    arrivals: list[int] = field(default_factory=list)
    stored_ms: int = 0
    exact: bool = False
    cancelled: bool = False

    @property
    def late_ms(self) -> int:
        """Time from the promised time to the arrival at the client in ms."""
        return self.arrivals[0] - self.promised_ms if self.arrivals else 0

    @property
    def verdict(self) -> str:
        """State of the message; faults in capitals."""
        if self.cancelled:
            return "ARRIVED AFTER CANCEL" if self.arrivals else "cancelled"
        if not self.arrivals:
            return "pending"
        if len(self.arrivals) > 1:
            return "DOUBLED"
        if self.exact and self.stored_ms < self.promised_ms:
            return "EARLY"
        return "ok"


class Demo:
    """Collector of the client's reports.

    Args:
        log: Directory of the broker's commit log.
    """

    def __init__(self, log: Path) -> None:
        self._log, self._clock = log, SystemClock()
        self.lines: dict[str, Line] = {}
        self.all_sent = False
        self.arrived = asyncio.Event()
        self.failure = ""

    @property
    def complete(self) -> bool:
        """Whether all messages are sent, and each has arrived or is cancelled."""
        return self.all_sent and all(
            line.arrivals or line.cancelled for line in self.lines.values()
        )

    async def send_all(self, producer: Producer, queue: MessageQueue) -> None:
        """Send the messages: first the timers, then those of levels."""
        for message in self._messages():
            await producer.send(message, queue=queue)
        self.all_sent = True

    def _messages(self) -> Iterator[Message]:
        """Yield each message when it is to be sent: its time counts from now."""
        yield self._message(CANCELLED_KEY, delay_ms=CANCELLED_DELAY_MS)
        for delay_ms in TIMER_DELAYS_MS:
            yield self._message(f"timer-{delay_ms}", delay_ms=delay_ms)
        for index in range(EACH):
            for level in DELAYS_MS:
                yield self._message(f"level-{level}-{index}", level=level)

    def _message(self, key: str, *, level: int = 0, delay_ms: int = 0) -> Message:
        sent_ms = self._clock.now_ms()
        promised_ms = sent_ms + (delay_ms or DELAYS_MS[level])
        self.lines[key] = Line(key, level, sent_ms, promised_ms, exact=not level)
        deliver_at = time_of(promised_ms) if delay_ms else None
        body = f"hello from {key}".encode()
        return Message(TOPIC, body, keys=key, level=level, deliver_at=deliver_at)

    async def received(self, message: ReceivedMessage) -> None:
        """Record the arrival of a message."""
        record = message.record
        line = self.lines.get(record.properties.get("KEYS", ""))
        if line is None:
            return
        line.arrivals.append(self._clock.now_ms())
        line.stored_ms = record.store_ms
        if record.prepared_offset < 0 and line.level:
            source = self._record(-record.prepared_offset - 1)
            line.promised_ms = source.store_ms + DELAYS_MS[line.level]
            line.exact = True
        if self.complete:
            self.arrived.set()

    def _record(self, offset: int) -> Record:
        """Read a record from the log file; clients cannot read records of levels."""
        base = offset - offset % LOG_FILE_BYTES
        with (self._log / f"{base:020d}").open("rb") as file:
            file.seek(offset - base)
            return decode_record(memoryview(file.read(RECORD_BYTES_MAX)), offset)

    def faults(self) -> list[str]:
        """Return the faults, one line each."""
        texts = [self.failure] if self.failure else []
        if not self.all_sent:
            texts.append("not all messages were sent")
        for line in self.lines.values():
            if line.verdict not in ("ok", "cancelled"):
                verdict = "MISSING" if line.verdict == "pending" else line.verdict
                texts.append(f"{line.key}: {verdict}")
        return texts


def compile_for_demo() -> None:
    """Compile the kernels that the demo needs; the broker compiles the rest."""
    if not is_complete():
        with shown_progress() as report:
            compile_kernels(kernels_of([*FIRST, *AFTERWARDS]), report)


def run_demo(*, as_json: bool) -> None:
    """Run the demo; exit 1 if a message is missing, early or duplicated."""
    compile_for_demo()
    demo = asyncio.run(_until_signal(_run(as_json)))
    faults = demo.faults()
    if as_json:
        print_json({"messages": [_facts(line) for line in demo.lines.values()], "faults": faults})
    elif not faults:
        if not sys.stdout.isatty():
            console().print()  # the live table has no final line end
        worst = max((line.late_ms for line in demo.lines.values()), default=0)
        timers = sum(not line.level for line in demo.lines.values())
        console().print(
            f"{len(demo.lines)} messages, {timers} of them timers: none missing, none early, "
            f"none duplicated, the cancelled one not delivered; "
            f"the latest reached the client {worst} ms after its promised time",
            soft_wrap=True,
        )
    if faults:
        fail("; ".join(faults), Exit.FOUND_FAULT)


def _facts(line: Line) -> dict[str, object]:
    return {
        "key": line.key,
        "level": line.level,
        "sent_ms": line.sent_ms,
        "promised_ms": line.promised_ms,
        "stored_ms": line.stored_ms,
        "cancelled": line.cancelled,
        "arrived_ms": line.arrivals,
        "late_ms": line.late_ms,
        "verdict": line.verdict,
    }


async def _until_signal(work: Coroutine[object, object, Demo]) -> Demo:
    """Return the result of `work`; cancel it, and so stop its processes, on SIGHUP and SIGTERM.

    A closed terminal sends SIGHUP, at which a broker only reloads its configuration.
    """
    loop, task = asyncio.get_running_loop(), asyncio.ensure_future(work)
    came: list[int] = []

    def stop(number: int) -> None:
        came.append(number)
        task.cancel()

    for number in (signal.SIGHUP, signal.SIGTERM):
        loop.add_signal_handler(number, stop, number)
    try:
        return await task
    except asyncio.CancelledError:
        if came:
            raise SystemExit(SIGNAL_EXIT + came[0]) from None
        raise


async def _run(as_json: bool) -> Demo:
    with tempfile.TemporaryDirectory(prefix="duemq-demo-") as directory:
        async with _broker(Path(directory)) as ready, Client(ready["namesrv"]) as client:
            demo = Demo(Path(directory) / "store" / "commitlog")
            following = _follow(demo, client)
            await (following if as_json else _show_live(demo, following))
            return demo


@asynccontextmanager
async def _broker(directory: Path) -> AsyncIterator[dict[str, Any]]:
    """Run a broker process; yield its `ready` event."""
    conf = directory / "broker.conf"
    conf.write_text(BROKER_CONF.format(root=directory / "store", log_file_bytes=LOG_FILE_BYTES))
    log = (directory / "broker.log").open("wb")
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "duemq",
        "broker",
        "-c",
        str(conf),
        "--json",
        stdout=asyncio.subprocess.PIPE,
        stderr=log,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(START_TIMEOUT_S):
            line = await process.stdout.readline()
        if not line:
            text = (directory / "broker.log").read_text(errors="replace")
            fail(f"the broker did not start:\n{text[-2_000:]}", Exit.FOUND_FAULT)
        yield json.loads(line)
    finally:
        await _stop(process)
        log.close()


async def _stop(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.terminate()
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


async def _cancel(demo: Demo, client: Client) -> None:
    """Cancel one timer; a refusal is a fault."""
    decisions = PendingDecisions(client=client)
    [result] = await decisions.cancel(keys=[CANCELLED_KEY], topic=TOPIC)
    demo.lines[CANCELLED_KEY].cancelled = result.verdict == "done"
    if not demo.lines[CANCELLED_KEY].cancelled:
        demo.failure = f"{CANCELLED_KEY} cannot be cancelled: {result.verdict}"


async def _follow(demo: Demo, client: Client) -> None:
    """Send, cancel and consume until all messages have arrived, and a little longer."""
    consumer = PushConsumer(client=client, group=GROUP, consume_from=ConsumeFrom.FIRST)
    consumer.subscribe(TOPIC, demo.received)
    try:
        async with Producer(client=client) as producer:
            first = await producer.send(Message(TOPIC, b"hello"))  # creates the topic
            async with consumer:
                await demo.send_all(producer, first.queue)
                await _cancel(demo, client)
                with suppress(TimeoutError):
                    await asyncio.wait_for(demo.arrived.wait(), RUN_TIMEOUT_S)
                await asyncio.sleep(LINGER_S)
    except (OSError, DueMQError) as error:
        demo.failure = demo.failure or str(error)


async def _show_live(demo: Demo, work: Coroutine[object, None, None]) -> None:
    from rich.live import Live

    with Live(_table(demo), console=console(), refresh_per_second=8) as live:
        following = asyncio.create_task(work)
        while not following.done():
            await asyncio.wait([following], timeout=0.1)
            live.update(_table(demo))
        await following


def _table(demo: Demo) -> Table:
    from duemq.cli.output import table

    rows = [
        (
            line.key,
            f"level {line.level}" if line.level else "timer",
            _clock_text(line.promised_ms),
            _clock_text(line.arrivals[0]) if line.arrivals else "",
            line.stored_ms - line.promised_ms if line.exact and line.arrivals else "",
            line.late_ms if line.arrivals else "",
            line.verdict,
        )
        for line in demo.lines.values()
    ]
    columns = (
        "message",
        "kind",
        "promised",
        "arrived",
        "#stored +ms",
        "#arrived +ms",
        "",
    )
    return table("DueMQ: messages by level and by time", columns, rows)


def _clock_text(ms: int) -> str:
    return time_text(ms)[11:23]


if __name__ == "__main__":
    with errors_become_exits():
        if text := use_writable_cache():
            notice(text)
        run_demo(as_json="--json" in sys.argv[1:])
