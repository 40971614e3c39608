"""`duemq send --from FILE`: resend the output of `duemq reconcile repair`, each message once.

A message is skipped if its unique id exists in the topic, or if a copy is pending. The same file
can therefore be sent again, for example after an interruption.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from duemq.cli.client import Cluster, bytes_of, query_fields
from duemq.cli.messages import put, writable_queues
from duemq.cli.options import Target
from duemq.cli.output import console, print_json_line, print_table
from duemq.net.codes import RequestCode, ResponseCode
from duemq_common.clock import SystemClock
from duemq_common.errors import RequestError, UsageError
from message_store.log.properties import decode_properties
from message_store.log.record import split_records

FORMAT: Final = "duemq-repair-1"
REPAIRED: Final = "DUEMQ_REPAIRED"
"""Property of a resent message: log offset of the lost record."""
PENDING_TOPICS: Final = ("rmq_sys_wheel_timer", "SCHEDULE_TOPIC_XXXX")
BROKER_PROPERTIES: Final = frozenset(
    {
        "REAL_TOPIC",
        "REAL_QID",
        "DELAY",
        "DELAy",
        "TIMER_OUT_MS",
        "TIMER_DELIVER_MS",
        "TIMER_DELAY_SEC",
        "TIMER_DELAY_MS",
        "TIMER_ENQUEUE_MS",
        "TIMER_DEQUEUE_MS",
        "TIMER_ROLL_TIMES",
        "DUEMQ_DUE_MS",
        REPAIRED,
    }
)
SEND, EXISTS, NO_ID = "send", "exists", "no unique id"


@dataclass(frozen=True, slots=True)
class Lost:
    """Lost message, as read from the file.

    Attributes:
        phys_offset: Log offset of its record in the store that lost it.
        due_ms: Due time in ms since the epoch; None: unknown.
    """

    topic: str
    unique_id: str
    body: bytes
    properties: dict[str, str]
    phys_offset: int
    queue_id: int
    due_ms: int | None


def read_file(path: Path) -> Iterator[Lost]:
    """Yield the messages of a file.

    Raises:
        UsageError: The file is unreadable or malformed; the text has the line number.
    """
    try:
        file = path.open("rb")
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    with file:
        number = 0
        for number, line in enumerate(file, 1):
            try:
                value = json.loads(line)
                if number > 1:
                    yield _lost(value)
                elif value["format"] != FORMAT:
                    raise ValueError(f"its format is {value['format']}")
            except (ValueError, TypeError, LookupError, AttributeError) as error:
                reason = f"{path}:{number}: not an output of `duemq reconcile repair` ({error})"
                raise UsageError(reason) from error
    if not number:
        raise UsageError(f"{path} is empty: not an output of `duemq reconcile repair`")


def _lost(value: dict[str, Any]) -> Lost:
    properties = decode_properties(base64.b64decode(value["property_text"], validate=True))
    return Lost(
        str(value["topic"]),
        str(value["unique_id"] or ""),
        base64.b64decode(value["body"], validate=True),
        {k: v for k, v in properties.items() if k not in BROKER_PROPERTIES},
        int(value["phys_offset"]),
        int(value["queue_id"] or 0),
        None if value["due_ms"] is None else int(value["due_ms"]),
    )


def send_file(path: Path, target: Target, *, really: bool) -> None:
    """Print what would be sent; with `really`, send it."""
    done = asyncio.run(_send_all(path, target, really))
    counts = {name: done[name] for name in (SEND, EXISTS, NO_ID)}
    if target.as_json:
        print_json_line({"dry_run": not really, **counts})
        return
    titles = {
        SEND: "sent" if really else "to send",
        EXISTS: "already exists",
        NO_ID: "not sent: no id",
    }
    rows = [(titles[name], f"{count:,}") for name, count in counts.items()]
    print_table(str(path), ("action", "#messages"), rows)
    if not really:
        console().print("Nothing was sent: this was a dry run. Add --yes to send.")


async def _send_all(path: Path, target: Target, really: bool) -> Counter[str]:
    done: Counter[str] = Counter()
    async with target.cluster() as cluster:
        for lost in read_file(path):
            action = await _action_for(cluster, lost)
            if action == SEND and really:
                await _send(cluster, lost)
            done[action] += 1
            if target.as_json:
                print_json_line({"unique_id": lost.unique_id, "topic": lost.topic, "what": action})
    return done


async def _action_for(cluster: Cluster, lost: Lost) -> str:
    """Return SEND, EXISTS or NO_ID; without a unique id a copy cannot be recognized."""
    if not lost.unique_id:
        return NO_ID
    if await _is_pending(cluster, lost):  # first: the next check finds a delivery in between
        return EXISTS
    copies = await _records_of(cluster, lost.topic, lost.unique_id)
    exists = any(record.properties.get("UNIQ_KEY") == lost.unique_id for record in copies)
    return EXISTS if exists else SEND


async def _is_pending(cluster: Cluster, lost: Lost) -> bool:
    """Return whether a message with this id is pending for its topic, or was cancelled."""
    body = json.dumps({"keys": [lost.unique_id], "topic": lost.topic, "dry_run": True}).encode()
    for _, address in await cluster.brokers():
        response = await cluster.request(address, RequestCode.CANCEL_PENDING, {}, body)
        if response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:  # a broker of Apache
            if await _was_resent(cluster, lost):
                return True
        elif response.code != ResponseCode.SUCCESS:
            raise RequestError(
                response.code, response.remark or f"{address} cannot look for messages"
            )
        elif json.loads(bytes_of(response))["results"][0]["verdict"] == "done":
            return True
    return False


async def _was_resent(cluster: Cluster, lost: Lost) -> bool:
    """Return whether an Apache broker has this message from an earlier repair."""
    for topic in PENDING_TOPICS:
        for record in await _records_of(cluster, topic, lost.unique_id):
            if record.properties.get(REPAIRED) == str(lost.phys_offset):
                return True
    return False


async def _records_of(cluster: Cluster, topic: str, unique_id: str) -> list[Any]:
    fields = query_fields(topic, unique_id)
    messages = []
    for _, address in await cluster.brokers():
        response = await cluster.request(address, RequestCode.QUERY_MESSAGE, fields)
        if response.code == ResponseCode.SUCCESS:
            messages += split_records(bytes_of(response))
        elif response.code != ResponseCode.QUERY_NOT_FOUND:  # the message may exist: do not send it
            raise RequestError(
                response.code, response.remark or f"{address} cannot look for messages"
            )
    return messages


async def _send(cluster: Cluster, lost: Lost) -> None:
    queues = await writable_queues(cluster, lost.topic)
    queue = next((q for q in queues if q.queue_id == lost.queue_id), queues[0])
    now_ms = SystemClock().now_ms()
    properties = lost.properties | {"UNIQ_KEY": lost.unique_id, REPAIRED: str(lost.phys_offset)}
    if lost.due_ms is not None and lost.due_ms > now_ms:
        properties["TIMER_DELIVER_MS"] = str(lost.due_ms)
    await put(cluster, queue, lost.topic, properties, lost.body)
