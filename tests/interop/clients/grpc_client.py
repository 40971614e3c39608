"""Drives Apache's gRPC client for Python (PyPI `rocketmq-python-client`): one JSON line per event.

    grpc_client.py produce --namesrv 127.0.0.1:8081 --topic T --n 10 --delay-ms 500    one command
    grpc_client.py session                                            commands from stdin

`--namesrv` is the address of the gRPC port. `tests.support.client_commands` describes a session.
The package has the import name of librocketmq's: it is in an environment of its own.
"""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from typing import Any

from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
    SimpleConsumer,
    TransactionChecker,
    TransactionResolution,
)

from tests.support.client_commands import Command, Commands, run_program

REQUEST_S = 10
AWAIT_S = 1
BATCH = 32
CHECKED = {"commit": TransactionResolution.COMMIT, "rollback": TransactionResolution.ROLLBACK}


def configuration(command: Command) -> Any:
    """Return the address and the account of --access-key and --secret-key."""
    account = Credentials(command.text("access-key"), command.text("secret-key"))
    return ClientConfiguration(command.text("namesrv"), account, request_timeout=REQUEST_S)


class Checker(TransactionChecker):  # type: ignore[misc]
    """Resolution of half messages that the broker checks: --checked commit or rollback."""

    def __init__(self, command: Command) -> None:
        self._command = command

    def check(self, message: Any) -> Any:
        """Return the resolution of a half message."""
        self._command.print("checked", msgId=message.message_id)
        return CHECKED[self._command.text("checked", "commit")]


def produce(command: Command) -> None:
    """Send --n messages; with --end commit, rollback or none as half messages."""
    checker, topic = Checker(command), command.text("topic")
    with_checker = checker if command.text("end") else None
    producer = Producer(configuration(command), (topic,), with_checker)
    producer.startup()
    try:
        for i in range(command.number("n", 1)):
            sent = send(command, producer, message(command, i))
            command.print(
                "sent",
                i=i,
                msgId=sent.message_id,
                queueOffset=sent.offset,
                recallHandle=sent.recall_handle or "",
            )
        command.stopped.wait(command.number("linger-ms", 0) / 1_000)
    finally:
        producer.shutdown()


def send(command: Command, producer: Any, made: Any) -> Any:
    """Send one message, and end its transaction as --end names."""
    end = command.text("end")
    if not end:
        return producer.send(made)
    transaction = producer.begin_transaction()
    sent = producer.send(made, transaction)
    if end == "commit":
        transaction.commit()
    elif end == "rollback":
        transaction.rollback()
    return sent


def message(command: Command, i: int) -> Any:
    """Return one message of a series: body PREFIX-i."""
    made = Message()
    made.topic = command.text("topic")
    made.body = f"{command.text('body', 'body')}-{i}".encode()
    if tag := command.text("tags"):
        made.tag = tag
    if keys := command.text("keys"):
        made.keys = f"{keys}-{i}"
    if group := command.text("message-group"):
        made.message_group = group
    for pair in filter(None, command.text("property").split("|")):
        made.add_property(*pair.split("=", 1))
    if delay_ms := command.number("delay-ms", 0):
        made.delivery_timestamp = math.ceil(time.time() + delay_ms / 1_000)  # of seconds
    return made


def recall(command: Command) -> None:
    """Recall the message of --handle."""
    topic = command.text("topic")
    producer = Producer(configuration(command), (topic,))
    producer.startup()
    try:
        found = producer.recall_message(topic, command.text("handle"))
        command.print("recalled", msgId=found)
    finally:
        producer.shutdown()


class Receiver(SimpleConsumer):  # type: ignore[misc]
    """SimpleConsumer that signals the arrival of its settings, which Apache's proxy requires."""

    def __init__(self, *arguments: Any) -> None:
        self.has_settings = threading.Event()
        super().__init__(*arguments)

    def reset_setting(self, settings: Any) -> None:
        """Apply the settings of the server."""
        super().reset_setting(settings)
        self.has_settings.set()


def receive(command: Command) -> None:
    """Receive with a SimpleConsumer and acknowledge, until --until messages are acknowledged.

    The first --hold-first messages are not acknowledged; --change-ms changes their invisible time.
    """
    filters = {command.text("topic"): FilterExpression(command.text("tags", "*"))}
    consumer = Receiver(configuration(command), command.text("group"), filters, AWAIT_S)
    consumer.startup()
    consumer.has_settings.wait(REQUEST_S)
    command.print("started")
    invisible_s = command.number("invisible-ms", 10_000) // 1_000  # of seconds, as all times here
    seen = acknowledged = 0
    end = time.monotonic() + command.number("wait-ms", 60_000) / 1_000
    try:
        while acknowledged < command.number("until", 1 << 30) and time.monotonic() < end:
            if command.stopped.is_set():
                break
            for each in consumer.receive(command.number("batch", BATCH), invisible_s):
                seen += 1
                if seen > command.number("hold-first", 0):
                    consumer.ack(each)
                    acknowledged += 1
                    command.print("message", action="acknowledged", **fields_of(each))
                    continue
                if change_ms := command.number("change-ms", 0):
                    consumer.change_invisible_duration(each, change_ms // 1_000)
                command.print("message", action="held", **fields_of(each))
    finally:
        consumer.shutdown()


def push_consume(command: Command) -> None:
    """Consume with a PushConsumer; the first --fail-first deliveries fail."""
    lock = threading.Lock()
    consumed: list[bool] = []

    class Listener(MessageListener):  # type: ignore[misc]
        def consume(self, message: Any) -> Any:
            with lock:
                fails = len(consumed) < command.number("fail-first", 0)
                consumed.append(not fails)
                action = "later" if fails else "consumed"
                command.print("message", action=action, **fields_of(message))
            return ConsumeResult.FAILURE if fails else ConsumeResult.SUCCESS

    filters = {command.text("topic"): FilterExpression(command.text("tags", "*"))}
    consumer = PushConsumer(configuration(command), command.text("group"), Listener(), filters)
    consumer.startup()
    command.print("started")
    end = time.monotonic() + command.number("wait-ms", 60_000) / 1_000
    try:
        while sum(consumed) < command.number("until", 1 << 30) and time.monotonic() < end:
            if command.stopped.wait(0.02):
                break
    finally:
        consumer.shutdown()


def fields_of(received: Any) -> dict[str, object]:
    """Return the fields of a received message."""
    return {
        "msgId": received.message_id,
        "topic": received.topic,
        "body": received.body.decode(errors="replace"),
        "attempt": received.delivery_attempt,
        "tags": received.tag or "",
        "keys": " ".join(received.keys or ()),
        "messageGroup": received.message_group or "",
        "bornTimestamp": received.born_timestamp,
        "properties": dict(received.properties),
    }


COMMANDS: Commands = {
    "produce": produce,
    "recall": recall,
    "receive": receive,
    "push-consume": push_consume,
}

if __name__ == "__main__":
    code = run_program(sys.argv[1:], COMMANDS)
    sys.stdout.flush()
    os._exit(code)  # threads of the library keep the process
