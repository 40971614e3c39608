"""Routes of topics: queues and addresses of brokers, from a name server or from one broker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from duemq.client.message import MessageQueue
from duemq_common.broker_ids import MASTER_ID
from duemq_common.request import Response, bytes_of

WRITE, READ = 2, 4
"""Bits of the permission of a topic. PermName"""
NEW_TOPIC_QUEUES: Final = 4  # queues requested for a new topic, as by Apache's clients


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """Queues of a topic and addresses of their brokers.

    Attributes:
        addresses: `host:port` by broker id, by broker name.
        write_queues, read_queues: Queues of brokers that have a master, or any broker, in order.
    """

    topic: str
    addresses: Mapping[str, Mapping[int, str]]
    write_queues: tuple[MessageQueue, ...]
    read_queues: tuple[MessageQueue, ...]

    def master(self, broker_name: str) -> str:
        """Return the address of a master; empty if it is not known."""
        return self.addresses.get(broker_name, {}).get(MASTER_ID, "")

    def masters(self) -> list[str]:
        """Return the addresses of the masters with a writable queue."""
        return sorted({self.master(queue.broker_name) for queue in self.write_queues})

    def any_member(self, broker_name: str, broker_id: int = MASTER_ID) -> str:
        """Return the address of a member of a group, the one with this id if possible."""
        members = self.addresses.get(broker_name, {})
        return members.get(broker_id) or members.get(MASTER_ID) or next(iter(members.values()), "")


def route_of(topic: str, data: Mapping[str, Any], *, queues_max: int | None = None) -> TopicRoute:
    """Return the route in the body of a response. TopicRouteData

    Raises:
        ValueError: The body is not a route.
    """
    try:
        addresses = {
            str(one["brokerName"]): {int(i): str(a) for i, a in one["brokerAddrs"].items()}
            for one in data["brokerDatas"]
        }
        parts = sorted(data["queueDatas"], key=lambda one: str(one["brokerName"]))
        queues: dict[int, list[MessageQueue]] = {WRITE: [], READ: []}
        for one in parts:
            name = str(one["brokerName"])
            for bit, count in ((WRITE, "writeQueueNums"), (READ, "readQueueNums")):
                usable = MASTER_ID in addresses.get(name, {}) if bit == WRITE else name in addresses
                if usable and int(one["perm"]) & bit:
                    numbers = range(int(one[count]))[:queues_max]
                    queues[bit] += [MessageQueue(topic, name, number) for number in numbers]
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"this is not the route of a topic: {error!r}") from error
    return TopicRoute(topic, addresses, tuple(queues[WRITE]), tuple(queues[READ]))


def json_object(response: Response) -> dict[str, Any]:
    """Return the JSON object in the body of a response, with text as keys.

    Raises:
        ValueError: The body is not a JSON object.
    """
    import msgspec

    body = bytes_of(response)
    try:
        value = msgspec.json.decode(body)
    except msgspec.DecodeError:  # Apache writes unquoted numbers as keys
        from duemq_common.json_dialect import loads

        value = _text_keys(loads(body.decode()))
    if not isinstance(value, dict):
        raise ValueError(f"the body is a JSON {type(value).__name__}, not an object")
    return value


def _text_keys(value: object) -> object:
    if isinstance(value, dict):
        return {str(key): _text_keys(item) for key, item in value.items()}
    return [_text_keys(item) for item in value] if isinstance(value, list) else value
