"""Client process of the demo, using the C++ client of the PyPI package `rocketmq`.

It prints its events as JSON lines, which `demo` reads. The C++ client shows that unmodified
applications work. It exists for x86-64 only; elsewhere DueMQ's client replaces it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from duemq.cli.client import Cluster, Queue
from duemq.cli.consume import ConsumeOptions, Reader
from duemq.cli.messages import Outgoing, sending
from duemq_common.clock import SystemClock
from message_store.log.record import Record

GROUP = "duemq_demo"
DELIVER_AT = "TIMER_DELIVER_MS"  # MessageConst.PROPERTY_TIMER_DELIVER_MS
HELLO_COUNT = 8
HELLO_WAIT_S = 60


@dataclass(frozen=True, slots=True)
class DemoPlan:
    """Messages to send.

    Attributes:
        levels, each: Delay levels, and number of messages per level.
        timers_ms: Delays of timers; the key of the last one is `cancelled`.
    """

    levels: list[int]
    each: int
    timers_ms: list[int]
    cancelled: str

    def messages(self) -> Iterator[tuple[str, int, int]]:
        """Yield (key, level, delay in ms); a timer has level 0, a level message delay 0."""
        for row_index, delay_ms in enumerate(self.timers_ms, 1):
            is_last = row_index == len(self.timers_ms)
            yield self.cancelled if is_last else f"timer-{delay_ms}", 0, delay_ms
        for index in range(self.each):
            for level in self.levels:
                yield f"level-{level}-{index}", level, 0


class Reporter:
    """Printer of events; callbacks of the C++ client run on its own threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._clock = SystemClock()

    def now_ms(self) -> int:
        """Return the current time in ms."""
        return self._clock.now_ms()

    def __call__(self, event: str, **facts: object) -> None:
        """Print one event with its time."""
        line = json.dumps({"event": event, "at_ms": self._clock.now_ms(), **facts})
        with self._lock:
            sys.stdout.write(line + "\n")
            sys.stdout.flush()


def start_consumer(namesrv: str, topic: str, report: Reporter) -> tuple[Any, threading.Event]:
    """Start a push consumer; the event is set at the first message."""
    from rocketmq.client import PushConsumer

    awake = threading.Event()

    def received(message: Any) -> None:
        report(
            "received",
            key=message.keys.decode(),
            store_ms=message.store_timestamp,
            prepared=message.prepared_transaction_offset,
            times=message.reconsume_times,
        )
        awake.set()

    consumer = PushConsumer(GROUP)
    consumer.set_namesrv_addr(namesrv)
    consumer.subscribe(topic, received)
    consumer.start()
    return consumer, awake


def send(
    producer: Any, topic: str, key: str, report: Reporter, level: int = 0, delay_ms: int = 0
) -> None:
    """Send one message with a level or a time; without either it is delivered at once."""
    from rocketmq.client import Message

    message = Message(topic)
    message.set_keys(key)
    message.set_body(f"hello from {key}")
    due_ms = report.now_ms() + delay_ms if delay_ms else 0
    if level:
        message.set_delay_time_level(level)
    if due_ms:
        message.set_property(DELIVER_AT, str(due_ms))
    result = producer.send_sync(message)
    if level or due_ms:
        facts = {"status": int(result.status), "message_id": result.msg_id}
        report("sent", key=key, level=level, due_ms=due_ms, **facts)


def run(namesrv: str, topic: str, plan: DemoPlan) -> None:
    """Send the messages of a plan; then consume until standard input closes."""
    from rocketmq.client import Producer

    report = Reporter()
    producer = Producer(GROUP)
    producer.set_namesrv_addr(namesrv)
    producer.start()
    for index in range(HELLO_COUNT):
        send(producer, topic, f"hello-{index}", report)
    consumer, awake = start_consumer(namesrv, topic, report)
    if not awake.wait(HELLO_WAIT_S):
        report("failed", why=f"the consumer received no message within {HELLO_WAIT_S} s")
        return
    for key, level, delay_ms in plan.messages():
        send(producer, topic, key, report, level, delay_ms)
    report("all sent")
    sys.stdin.read()
    consumer.shutdown()
    producer.shutdown()


async def run_own(namesrv: str, topic: str, plan: DemoPlan) -> None:
    """Run the plan with DueMQ's client, for machines without the C++ client."""
    report = Reporter()
    async with Cluster(namesrv) as cluster:

        async def put(key: str, level: int = 0, delay_ms: int = 0) -> None:
            due_ms = report.now_ms() + delay_ms if delay_ms else 0
            due_text = str(due_ms) if due_ms else ""
            outgoing = Outgoing(topic, "", level=level, key=key, queue_id=0, at=due_text)
            async for sent in sending(cluster, outgoing, f"hello from {key}".encode()):
                if level or due_ms:
                    facts = {"status": 0, "message_id": sent.message_id}
                    report("sent", key=key, level=level, due_ms=due_ms, **facts)

        def received(queue: Queue, record: Record) -> None:
            facts = {"store_ms": record.store_ms, "prepared": record.prepared_offset, "times": 0}
            report("received", key=record.properties.get("KEYS", ""), **facts)

        await put("hello-0")
        options = ConsumeOptions(topic, GROUP, from_first=True)
        reading = asyncio.create_task(Reader(cluster, options, received).run())
        for message in plan.messages():
            await put(*message)
        report("all sent")
        await reading


def main() -> None:
    """Parse arguments and run."""
    parser = argparse.ArgumentParser()
    parser.add_argument("namesrv")
    parser.add_argument("topic")
    parser.add_argument("each", type=int)
    parser.add_argument("levels", type=int, nargs="+")
    parser.add_argument("--timers", type=int, nargs="+", required=True, help="delays in ms")
    parser.add_argument("--cancelled", required=True, help="key of the last timer")
    parser.add_argument("--own", action="store_true", help="DueMQ's own client")
    arguments = parser.parse_args()
    plan = DemoPlan(arguments.levels, arguments.each, arguments.timers, arguments.cancelled)
    settings = (arguments.namesrv, arguments.topic, plan)
    try:
        if arguments.own:
            asyncio.run(run_own(*settings))
        else:
            run(*settings)
    except Exception as error:
        Reporter()("failed", why=f"{type(error).__name__}: {error}")
    os._exit(0)  # the C++ library's destructors may wait for its threads forever


if __name__ == "__main__":
    main()
