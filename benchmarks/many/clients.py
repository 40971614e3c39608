"""Clients of the phases before the load: topics, connections and groups, one kind at a time."""

from __future__ import annotations

import json
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.free_ports import LOOPBACK
from tests.support.remoting_requests import SUCCESS, call, create_topic

UPDATE_TOPIC_LIST, HEARTBEAT = 18, 34
TOPICS_PER_REQUEST = 1_000
QUEUE_COUNT = 4
ANSWER_S = 60.0
PREFIX = "many"


def create_topics(port: int, count: int) -> float:
    """Create the topics by requests of a thousand each, as `mqadmin updateTopicList`; return s."""
    start = time.monotonic()
    for first in range(0, count, TOPICS_PER_REQUEST):
        end = min(first + TOPICS_PER_REQUEST, count)
        topics = [_topic(f"{PREFIX}-{number:05d}") for number in range(first, end)]
        body = json.dumps({"topicConfigList": topics}).encode()
        response = call(port, UPDATE_TOPIC_LIST, {}, body)
        assert response.code == SUCCESS, response.remark
    return time.monotonic() - start


def create_singly(port: int, count: int) -> float:
    """Create topics by one request each; return s."""
    start = time.monotonic()
    for number in range(count):
        create_topic(port, f"single-{number:05d}", queue_count=QUEUE_COUNT)
    return time.monotonic() - start


def _topic(name: str) -> dict[str, object]:
    return {
        "topicName": name,
        "readQueueNums": QUEUE_COUNT,
        "writeQueueNums": QUEUE_COUNT,
        "perm": 6,
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0,
        "order": False,
    }


@contextmanager
def connections(port: int, count: int, *, groups: bool) -> Iterator[None]:
    """Keep connections that sent a heartbeat while the block is active.

    Args:
        groups: Whether each is the member of a group of its own; otherwise a producer.
    """
    sockets = [socket.create_connection((LOOPBACK, port), timeout=ANSWER_S) for _ in range(count)]
    try:
        for number, each in enumerate(sockets):
            each.sendall(_heartbeat(number, groups=groups))
        for each in sockets:
            size = int.from_bytes(_read(each, 4), "big")
            _read(each, size)
        yield
    finally:
        for each in sockets:
            each.close()


def _read(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise ConnectionError("the broker closed a connection")
        data += part
    return data


def _heartbeat(number: int, *, groups: bool) -> bytes:
    subscription = {"topic": f"{PREFIX}-{number:05d}", "subString": "*", "subVersion": 1}
    consumer = {
        "groupName": f"slope-{number:05d}",
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
        "subscriptionDataSet": [subscription],
    }
    body = {
        "clientID": f"slope-{number}",
        "producerDataSet": [] if groups else [{"groupName": "p-slope"}],
        "consumerDataSet": [consumer] if groups else [],
    }
    data = json.dumps(body).encode()
    header = json.dumps(
        {"code": HEARTBEAT, "language": "JAVA", "version": 435, "opaque": 1, "flag": 0}
    ).encode()
    return struct.pack(">II", 4 + len(header) + len(data), len(header)) + header + data
