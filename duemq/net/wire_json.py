"""JSON in request and response bodies: compact, and compatible with fastjson, Go and C++.

Other brokers and tools may write keys that are numbers or objects, which `parse` accepts. In a
table keyed by queues, the queue object is the key, as in fastjson.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from duemq_common import json_dialect


class QueueKey(NamedTuple):
    """Queue of one broker: MessageQueue."""

    broker_name: str
    queue_id: int
    topic: str

    def to_json(self) -> dict[str, str | int]:
        """Return the JSON object, keys sorted."""
        return {"brokerName": self.broker_name, "queueId": self.queue_id, "topic": self.topic}


def encode(value: object) -> bytes:
    """Return compact JSON; keys that are numbers become text."""
    return msgspec.json.encode(value)


def queue_table(table: Mapping[QueueKey, object]) -> msgspec.Raw:
    """Return `{{"brokerName":..,"queueId":..,"topic":..}:value,...}` for use with `encode`."""
    return table_of(queue_entry(key, value) for key, value in table.items())


def queue_entry(key: QueueKey, value: object) -> bytes:
    """Return one entry of a `queue_table`."""
    return encode(key.to_json()) + b":" + encode(value)


def table_of(entries: Iterable[bytes]) -> msgspec.Raw:
    """Return the `queue_table` with these entries."""
    return msgspec.Raw(b"{" + b",".join(entries) + b"}")


def parse(body: bytes) -> object:
    """Return the JSON value of a body; an empty body is an empty object.

    Raises:
        ValueError: The body is neither JSON nor fastjson's dialect.
    """
    if not body:
        return {}
    try:
        return msgspec.json.decode(body)
    except msgspec.DecodeError:
        return json_dialect.loads(body.decode("utf-8"))
    except RecursionError:
        raise ValueError("nested too deeply") from None


def parse_object(body: bytes) -> dict[str, object]:
    """Return the JSON object of a body; an empty body is an empty object.

    Raises:
        ValueError: The body is not a JSON object.
    """
    value = parse(body)
    if not isinstance(value, dict):
        raise ValueError(f"the body is a JSON {type(value).__name__}, not an object")
    return value
