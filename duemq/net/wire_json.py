"""JSON on the wire: compact, and readable to fastjson, to Go and to C++.

Text from other brokers and tools may have keys that are numbers or objects; `parse` takes those
too. A table keyed by a queue is written as fastjson writes it: the queue object is the key.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from message_store import json_dialect


class QueueKey(NamedTuple):
    """A queue of one broker: MessageQueue."""

    broker_name: str
    queue_id: int
    topic: str

    def to_json(self) -> dict[str, str | int]:
        """Return the object, names sorted."""
        return {"brokerName": self.broker_name, "queueId": self.queue_id, "topic": self.topic}


def encode(value: Any) -> bytes:
    """Return compact JSON; keys that are numbers become text."""
    return msgspec.json.encode(value)


def queue_table(table: Mapping[QueueKey, Any]) -> msgspec.Raw:
    """Return `{{"brokerName":..,"queueId":..,"topic":..}:value,...}`, to be put into `encode`."""
    parts = (encode(key.to_json()) + b":" + encode(value) for key, value in table.items())
    return msgspec.Raw(b"{" + b",".join(parts) + b"}")


def parse(body: bytes) -> Any:
    """Return the JSON value of a body; an empty body is an empty object.

    Raises:
        ValueError: It is not JSON, in either dialect.
    """
    if not body:
        return {}
    try:
        return msgspec.json.decode(body)
    except msgspec.DecodeError:
        return json_dialect.loads(body.decode("utf-8"))
    except RecursionError:
        raise ValueError("nested too deeply") from None


def parse_object(body: bytes) -> dict[str, Any]:
    """Return the JSON object of a body; an empty body is an empty object.

    Raises:
        ValueError: It is not an object.
    """
    value = parse(body)
    if not isinstance(value, dict):
        raise ValueError(f"the body is {type(value).__name__}, not an object")
    return value
