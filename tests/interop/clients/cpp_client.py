"""Drives librocketmq, the C++ client, through the PyPI package `rocketmq`: one JSON line per event.

    cpp_client.py produce --namesrv 127.0.0.1:9876 --topic T --n 10 --level 1    one command
    cpp_client.py session                                                      commands from stdin

`tests.support.client_commands` describes a session. The library writes logs to HOME and may end
the process that it is in: it runs as a process of its own.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from rocketmq.client import Message, Producer, PullConsumer, PushConsumer, RecvMessage
from rocketmq.ffi import MessageModel

from tests.support.client_commands import Command, run_program

Fields = dict[str, Any]
PROPERTIES = ("UNIQ_KEY", "DELAY", "REAL_TOPIC", "REAL_QID", "RETRY_TOPIC", "ORIGIN_MESSAGE_ID")
POLL_S = 0.02
CALM_S = 0.3
CONNECT_TRIES, CONNECT_S = 5, 0.1  # see when_connected
UNCONNECTED = "No route info"
CHANNEL = "ALIYUN"  # one more signed field; the library signs nothing without it


def produce(command: Command) -> None:
    """Send: --mode sync, async, oneway, oneway-ordered, batch or ordered."""
    producer = Producer(command.text("group", "p_interop"), timeout=10_000)
    connect_as(command, producer)
    producer.start()
    try:
        send(command, producer)
        if command.text("mode").startswith("oneway"):
            time.sleep(CALM_S)  # see keep_connected
    finally:
        producer.shutdown()


def connect_as(command: Command, client: Any) -> None:
    """Set the name server, and the account of --access-key and --secret-key."""
    client.set_namesrv_addr(command.text("namesrv"))
    if access_key := command.text("access-key"):
        client.set_session_credentials(access_key, command.text("secret-key"), CHANNEL)


def send(command: Command, producer: Any) -> None:
    """Send the messages of one produce command."""
    count = command.number("n", 1)
    mode = command.text("mode", "sync")
    messages = [message(command, i) for i in range(count)]
    if mode == "batch":
        result = when_connected(lambda: producer.send_batch(messages))
        command.print("sent", **sent(0, result))
        return
    if mode == "async":
        send_async(command, producer, messages)
        return
    calls: dict[str, Callable[[Any, int], Any]] = {
        "sync": lambda each, _shard: producer.send_sync(each),
        "ordered": producer.send_orderly,
        "oneway": lambda each, _shard: producer.send_oneway(each),
        "oneway-ordered": producer.send_oneway_orderly,
    }
    for i, each in enumerate(messages):
        shard = i % command.number("shards", 2)
        result = when_connected(partial(calls[mode], each, shard))
        fields = {"i": i, "oneway": True} if mode.startswith("oneway") else sent(i, result)
        command.print("sent", **fields)


def when_connected(call: Callable[[], Any]) -> Any:
    """Send, again while the library has no connection.

    The first send and the heartbeat both connect to the broker as soon as the route is there. The
    send fails without waiting while the heartbeat connects, and the library then reports that the
    topic has no route. It has sent nothing. It has no call that waits for the connection.
    """
    for _ in range(CONNECT_TRIES - 1):
        try:
            return call()
        except Exception as error:
            if UNCONNECTED not in str(error):
                raise
            time.sleep(CONNECT_S)
    return call()


def send_async(command: Command, producer: Any, messages: list[Any]) -> None:
    """Send all messages asynchronously and wait for the responses."""
    unsent = messages
    for left in reversed(range(CONNECT_TRIES)):
        unsent = send_async_once(command, producer, unsent, last=left == 0)
        if not unsent:
            return
        time.sleep(CONNECT_S)  # see when_connected


def send_async_once(
    command: Command, producer: Any, messages: list[Any], *, last: bool
) -> list[Any]:
    """Send messages asynchronously; return those for which there was no connection."""
    responses = threading.Semaphore(0)
    unsent: list[Any] = []

    def on_success(result: Any) -> None:
        command.print("sent", **sent(-1, result))
        responses.release()

    def on_error(each: Any, error: Exception) -> None:
        if UNCONNECTED in str(error) and not last:
            unsent.append(each)
        else:
            command.print("refused", text=str(error))
        responses.release()

    for each in messages:
        producer.send_async(each, on_success, partial(on_error, each))
    for _ in messages:
        if not responses.acquire(timeout=30):
            raise TimeoutError("asynchronous sends without a response")
    return unsent


def message(command: Command, i: int) -> Any:
    """Make one message of a series: body PREFIX-i, or that padded to --body-size bytes."""
    made = Message(command.text("topic"))
    made.set_body(f"{command.text('body', 'body')}-{i}".ljust(command.number("body-size", 0), "."))
    if tags := command.text("tags"):
        made.set_tags(tags)
    if keys := command.text("keys"):
        made.set_keys(f"{keys}-{i}")
    if level := command.number("level", 0):
        made.set_delay_time_level(level)
    if delay_ms := command.number("delay-ms", 0):
        made.set_property("TIMER_DELIVER_MS", str(int(time.time() * 1_000) + delay_ms))
    if pair := command.text("property"):
        made.set_property(*pair.split("=", 1))
    return made


def push_consume(command: Command) -> None:
    """Consume: --mode concurrent, orderly or broadcast; the first --fail-first are refused."""
    mode = command.text("mode", "concurrent")
    model = MessageModel.BROADCASTING if mode == "broadcast" else MessageModel.CLUSTERING
    consumer = PushConsumer(command.text("group"), orderly=mode == "orderly", message_model=model)
    connect_as(command, consumer)
    consumer.set_thread_count(command.number("threads", 2))
    lock = threading.Lock()
    seen: list[bool] = []

    def take(received: RecvMessage) -> None:
        with lock:
            refused = len(seen) < command.number("fail-first", 0)
            seen.append(refused)
            command.print(
                "message", action="later" if refused else "consumed", **fields_of(received)
            )
        if refused:
            raise RuntimeError("refused on purpose")

    consumer.subscribe(command.text("topic"), take, command.text("tags", "*"))
    companion = keep_connected(command)
    consumer.start()
    command.print("started")
    try:
        end = time.monotonic() + command.number("wait-ms", 60_000) / 1_000
        until = command.number("until", 1 << 30)
        while seen.count(False) < until and time.monotonic() < end:
            if command.stopped.wait(POLL_S):
                break
        command.stopped.wait(command.number("linger-ms", 0) / 1_000)
    finally:
        consumer.shutdown()
        time.sleep(CALM_S)
        companion.shutdown()


def keep_connected(command: Command) -> Any:
    """Start an idle producer that shares the consumer's connections.

    At shutdown a consumer sends its offsets and closes the connection immediately. This client
    marks no request as one-way, so that the broker responds. Closing a connection with unread
    responses resets it, and the broker loses the requests that it has not read yet; Apache's broker
    does, too. The idle producer therefore keeps the connections open a little longer.
    """
    companion = Producer(f"p_companion-{command.id}")
    connect_as(command, companion)
    companion.start()
    return companion


def pull(command: Command) -> None:
    """Read all queues of a topic to their ends with the pull consumer."""
    consumer = PullConsumer(command.text("group"))
    connect_as(command, consumer)
    consumer.start()
    try:
        for received in consumer.pull(command.text("topic"), command.text("tags", "*"), 32):
            command.print("message", **fields_of(received))
    finally:
        consumer.shutdown()


def sent(i: int, result: Any) -> Fields:
    """Return the fields of a send result."""
    status = "SEND_OK" if result.status == 0 else result.status.name
    return {"i": i, "status": status, "msgId": result.msg_id, "queueOffset": result.offset}


def fields_of(received: RecvMessage) -> Fields:
    """Return the fields of a received message."""
    properties = {name: text(received.get_property(name)) for name in PROPERTIES}
    return {
        "msgId": received.id,
        "topic": received.topic,
        "queueId": received.queue_id,
        "queueOffset": received.queue_offset,
        "physOffset": received.commit_log_offset,
        "bornTimestamp": received.born_timestamp,
        "storeTimestamp": received.store_timestamp,
        "reconsumeTimes": received.reconsume_times,
        "preparedOffset": received.prepared_transaction_offset,
        "tags": text(received.tags),
        "keys": text(received.keys),
        "body": text(received.body),
        "properties": {name: value for name, value in properties.items() if value},
    }


def text(value: bytes | None) -> str:
    """Decode bytes from the library."""
    return (value or b"").decode(errors="replace")


COMMANDS: dict[str, Callable[[Command], None]] = {
    "produce": produce,
    "push-consume": push_consume,
    "pull": pull,
}


if __name__ == "__main__":
    code = run_program(sys.argv[1:], COMMANDS)
    sys.stdout.flush()
    os._exit(code)  # exit without waiting for the library's threads and destructors
