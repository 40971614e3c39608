"""Requests and checks for tests in which DueMQ and Apache use one store in turn.

A `Ledger` records the sent messages and their levels, and compares them with the messages that can
be pulled at the end. Requests use the remoting protocol directly.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from duemq_common.json_dialect import loads
from message_store.log.record import Record, decode_record
from tests.support.commands import duemq
from tests.support.remoting_requests import SUCCESS, Answer, call
from tests.support.server import Server
from tests.support.wait_until import now_ms, until

SEND, PULL, QUERY, MAX_OFFSET, MIN_OFFSET = 10, 11, 12, 30, 31
NOTHING_NEW = (19, 20)  # PULL_NOT_FOUND, PULL_RETRY_IMMEDIATELY
FROM_HEADER = "4"  # the subscription stands in the pull request itself
TOPIC = "Handed"
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
QUEUE_COUNT = 4
UNIT_BYTES, UNIT = 20, ((0, 8), (8, 12))  # of a consume queue; log offset and size
LEVEL_MS = {1: 1_000, 2: 4_000, 3: 15_000}
DELIVERED_S = 120.0
POLL_S = 0.2
# Small files: a few hundred messages fill several of each kind.
KEYS = {
    "messageDelayLevel": "1s 4s 15s",
    "mappedFileSizeCommitLog": str(64 << 10),
    "mappedFileSizeConsumeQueue": "400",
    "maxHashSlotNum": "64",
    "maxIndexNum": "256",
    "maxMessageSize": str(16 << 10),
    "flushDelayOffsetInterval": "2000",
}
Place = tuple[str, int]
Bounds = dict[Place, tuple[int, int]]


@dataclass
class Ledger:
    """Messages sent to `TOPIC`: level by body; 0: not delayed."""

    levels: dict[str, int] = field(default_factory=dict)

    def send(self, server: Server, name: str, count: int, *, level: int = 0) -> None:
        """Send bodies `name-0`, `name-1`, ..., each with its body as its key."""
        for number in range(count):
            body = f"{name}-{number}"
            send(server, body, number % QUEUE_COUNT, {"DELAY": str(level)} if level else {})
            self.levels[body] = level

    def is_delivered(self, server: Server, bodies: Sequence[str] = ()) -> bool:
        """Return whether these bodies can be pulled; default: all sent messages."""
        wanted = set(bodies or self.levels)
        if message_count(server) < len(wanted):
            return False
        return wanted <= {record.body.decode() for record in pull_topic(server)}

    def wait(self, server: Server, bodies: Sequence[str] = ()) -> None:
        """Wait until these bodies are delivered; default: all sent messages."""
        until(
            lambda: self.is_delivered(server, bodies),
            seconds=DELIVERED_S,
            what="everything delivered",
            poll_s=POLL_S,
        )

    def wait_queued(self, server: Server) -> None:
        """Wait until the level queues are complete: Apache writes them after its response."""
        wanted = {(SCHEDULE_TOPIC, level - 1): len(self.of_level(level)) for level in LEVEL_MS}
        until(
            lambda: {p: last for p, (_, last) in bounds(server, list(wanted)).items()} == wanted,
            seconds=DELIVERED_S,
            what="everything queued",
            poll_s=POLL_S,
        )

    def of_level(self, level: int) -> list[str]:
        """Return the bodies sent with that level, oldest first."""
        return [body for body, sent_level in self.levels.items() if sent_level == level]

    def undelivered(self, store_dir: Path) -> list[str]:
        """Return the bodies that are not delivered according to delayOffset.json."""
        at = cursors(store_dir)
        return [body for level in LEVEL_MS for body in self.of_level(level)[at.get(level, 0) :]]

    def check(self, server: Server, *, may_repeat: Sequence[str] = ()) -> None:
        """Check that all messages were delivered once, not early, and are found by key.

        Args:
            may_repeat: Bodies whose delivery a killed broker may not have recorded.
        """
        came = pull_topic(server)
        counts = Counter(record.body.decode() for record in came)
        assert counts.keys() == self.levels.keys()
        doubled = {body for body, count in counts.items() if count > 1}
        assert doubled <= set(may_repeat)
        due_ms = due_times(server)
        for record in came:
            body = record.body.decode()
            if self.levels[body]:
                assert record.store_ms >= due_ms[body], f"{body} was delivered early"
                assert record.store_ms >= record.born_ms + LEVEL_MS[self.levels[body]]
        self._check_keys(server)

    def _check_keys(self, server: Server) -> None:
        for body in list(self.levels)[::17] + list(self.levels)[-1:]:
            until(  # the index is some milliseconds behind the log
                lambda body=body: body in [each.body.decode() for each in query(server, body)],  # type: ignore[misc]
                seconds=DELIVERED_S,
                what=f"{body} is found by its key",
            )


def send(server: Server, body: str, queue_id: int, more: dict[str, str]) -> dict[str, str]:
    """Send one message to `TOPIC`, with additional properties; return the response's fields."""
    properties = {"KEYS": body, "UNIQ_KEY": f"unique-{body}", "WAIT": "true", "TAGS": "T"} | more
    fields = {
        "producerGroup": "P",
        "topic": TOPIC,
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4",
        "queueId": str(queue_id),
        "sysFlag": "0",
        "bornTimestamp": str(now_ms()),
        "flag": "0",
        "properties": "".join(f"{key}\x01{value}\x02" for key, value in properties.items()),
        "reconsumeTimes": "0",
        "unitMode": "false",
        "batch": "false",
    }
    response = call(server.broker_port, SEND, fields, body.encode())
    assert response.code == SUCCESS, f"send {body}: {response.code} {response.remark}"
    return response.fields


def message_count(server: Server) -> int:
    """Return the number of messages of `TOPIC`, with far fewer requests than their pulls."""
    queues = [(TOPIC, queue_id) for queue_id in range(QUEUE_COUNT)]
    return sum(last - first for first, last in bounds(server, queues).values())


def pull_topic(server: Server) -> list[Record]:
    """Return all messages of `TOPIC`, queue by queue."""
    return [m for queue_id in range(QUEUE_COUNT) for m in pull_queue(server, TOPIC, queue_id)]


def pull_queue(server: Server, topic: str, queue_id: int) -> list[Record]:
    """Return all messages of a queue, from its first to its last."""
    at, end = bounds(server, [(topic, queue_id)])[topic, queue_id]
    found: list[Record] = []
    while at < end:
        response = pull(server, topic, queue_id, at)
        found += records(response.body)
        following = int(response.fields["nextBeginOffset"])
        assert following > at or response.code in NOTHING_NEW, f"{topic}/{queue_id} stays at {at}"
        at = following
    return found


def stored_queue(store_dir: Path, topic: str, queue_id: int) -> list[Record]:
    """Return all messages of a queue, read from the files; also of internal topics."""
    queue = store_dir / "consumequeue" / topic / str(queue_id)
    data = b"".join(path.read_bytes() for path in sorted(queue.glob("*")))
    logs = sorted((store_dir / "commitlog").glob("*"))
    bases = [int(path.name) for path in logs]
    found: list[Record] = []
    for at in range(0, len(data), UNIT_BYTES):
        offset, size = (int.from_bytes(data[at + start : at + end], "big") for start, end in UNIT)
        file = bisect_right(bases, offset) - 1
        if size <= 0 or file < 0:
            continue
        with logs[file].open("rb") as log:
            log.seek(offset - bases[file])
            found.append(decode_record(memoryview(log.read(size)), offset))
    return found


def pull(server: Server, topic: str, queue_id: int, offset: int) -> Answer:
    """Send one pull for the messages of a queue from `offset` on."""
    fields = {
        "consumerGroup": "Look",
        "topic": topic,
        "queueId": str(queue_id),
        "queueOffset": str(offset),
        "maxMsgNums": "32",
        "sysFlag": FROM_HEADER,
        "commitOffset": "0",
        "suspendTimeoutMillis": "0",
        "subscription": "*",
        "subVersion": "0",
        "expressionType": "TAG",
    }
    response = call(server.broker_port, PULL, fields)
    known = (SUCCESS, *NOTHING_NEW)
    assert response.code in known, f"pull {topic}/{queue_id}: {response.code} {response.remark}"
    return response


def due_times(server: Server) -> dict[str, int]:
    """Return the due times of pending messages (store time plus delay), by body."""
    return {
        record.body.decode(): record.store_ms + delay_ms
        for level, delay_ms in LEVEL_MS.items()
        for record in stored_queue(server.store_dir, SCHEDULE_TOPIC, level - 1)
    }


def query(server: Server, key: str) -> list[Record]:
    """Return the messages of `TOPIC` with that key."""
    fields = {
        "topic": TOPIC,
        "key": key,
        "maxNum": "32",
        "beginTimestamp": "0",
        "endTimestamp": str(now_ms() + 60_000),
    }
    response = call(server.broker_port, QUERY, fields)
    return records(response.body) if response.code == SUCCESS else []


def records(body: bytes) -> list[Record]:
    """Return the consecutive records in `body`."""
    found, at = [], 0
    while at < len(body):
        found.append(decode_record(memoryview(body)[at:], at))
        at += found[-1].total_size
    return found


def all_queues() -> list[Place]:
    """Return all queues that these tests use."""
    here = [(TOPIC, queue_id) for queue_id in range(QUEUE_COUNT)]
    return here + [(SCHEDULE_TOPIC, level - 1) for level in LEVEL_MS]


def bounds(server: Server, places: Sequence[Place]) -> Bounds:
    """Return the minimum and the maximum offset of each queue."""
    return {
        place: (_offset(server, MIN_OFFSET, place), _offset(server, MAX_OFFSET, place))
        for place in places
    }


def _offset(server: Server, code: int, place: Place) -> int:
    topic, queue_id = place
    response = call(server.broker_port, code, {"topic": topic, "queueId": str(queue_id)})
    assert response.code == SUCCESS, f"{code} of {place}: {response.code} {response.remark}"
    return int(response.fields["offset"])


def cursors(store_dir: Path) -> dict[int, int]:
    """Return the delivered queue offsets of the levels from `delayOffset.json`."""
    path = store_dir / "config" / "delayOffset.json"
    return _cursors(loads(path.read_text())) if path.exists() else {}


def cursors_of_running(store_dir: Path) -> dict[int, int]:
    """Return the result of `cursors`, empty while the broker writes the file."""
    value = json_of_running(store_dir / "config" / "delayOffset.json")
    return {} if value is None else _cursors(value)


def json_of_running(path: Path) -> Any:
    """Return the value of a JSON file of a running broker.

    Returns:
        None while the file is missing or incomplete: Apache overwrites its files in place.
    """
    try:
        return loads(path.read_text())
    except (FileNotFoundError, ValueError):
        return None


def _cursors(value: Any) -> dict[int, int]:
    return {int(level): int(offset) for level, offset in value["offsetTable"].items()}


def verify(store_dir: Path) -> None:
    """Check that `duemq store verify` finds no error in the store of a stopped broker."""
    slots = f"maxHashSlotNum={KEYS['maxHashSlotNum']}"
    done = duemq("store", "verify", str(store_dir), "--json", "--set", slots)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["ok"], report
