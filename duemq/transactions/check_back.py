"""Check request to a producer about the state of its transaction (39)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from delivery.plugin import Request
from duemq.auth.model import Action
from duemq.auth.record_access import RecordAccess
from duemq.net.codes import RequestCode
from duemq.ports import Identity
from duemq.registry.clients import Channel, ClientTable
from duemq.transactions.half_messages import (
    CLIENT_ID_KEY,
    HALF_TOPIC,
    PRODUCER_GROUP,
    TRANSACTION_ID,
)
from message_store.log.properties import encode_properties
from message_store.log.record import Host, Record, encode_again
from message_store.text import encode_offset_id


def producer_of(
    properties: Mapping[str, str], clients: ClientTable, records: RecordAccess
) -> Channel | None:
    """Return a producer that may read a half message: one that may publish to its topic."""

    def may(channel: Channel) -> bool:
        address, topic = channel.peer.address[0], properties.get("REAL_TOPIC", "")
        return records.account_may(channel.account, address, topic, Action.PUB)

    return clients.producer(properties.get(PRODUCER_GROUP, ""), may)


def check_request(
    half: Record,
    properties: Mapping[str, str],
    *,
    queue_offset: int,
    phys_offset: int,
    identity: Identity,
) -> Request:
    """Return the one-way request about `half`, whose newest copy is at these offsets.

    The body is the message as its consumers would get it: real topic and queue, the half
    message's times, the copy's offsets.
    """
    topic = properties.get("REAL_TOPIC", half.topic)
    queue = properties.get("REAL_QID", "0")
    message = replace(
        half,
        topic=topic,
        queue_id=int(queue) if queue.isdigit() else 0,
        queue_offset=queue_offset,
        phys_offset=phys_offset,
        property_text=encode_properties({**properties, "WAIT": "false"}),
        born_host=_as_ipv4(half.born_host),
        store_host=_as_ipv4(half.store_host),
    )
    key = properties.get(CLIENT_ID_KEY, "")
    address, port = identity.host
    found = {
        "tranStateTableOffset": str(queue_offset),
        "commitLogOffset": str(phys_offset),
        "msgId": key,
        "transactionId": properties.get(TRANSACTION_ID, key),
        "offsetMsgId": encode_offset_id(address, port, phys_offset),
        "topic": HALF_TOPIC,
        "bname": identity.broker_name,
    }
    return Request(RequestCode.CHECK_TRANSACTION_STATE, found, encode_again(message), oneway=True)


def _as_ipv4(host: Host) -> Host:
    """Return the host with four address bytes, the only form that clients read; IPv6: 0.0.0.0."""
    address, port = host
    return (address if len(address) == 4 else bytes(4)), port
