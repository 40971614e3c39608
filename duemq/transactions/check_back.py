"""Check-back request (code 39) to a producer, for the state of its transaction."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from duemq.auth.model import Action
from duemq.auth.record_access import RecordAccess
from duemq.registry.clients import Channel, ClientTable
from duemq.registry.managers import Identity
from duemq.transactions.half_messages import CLIENT_ID_KEY, PRODUCER_GROUP, TRANSACTION_ID
from duemq_common.codes import RequestCode
from duemq_common.request import Request
from duemq_common.topics import HALF_TOPIC
from message_store.log.offset_id import encode_offset_id
from message_store.log.properties import PROPERTIES_BYTES_MAX, encode_properties
from message_store.log.record import Host, Record, encode_record


def producer_of(
    properties: Mapping[str, str], clients: ClientTable, records: RecordAccess
) -> Channel | None:
    """Return a connected producer of the half message's group; None if there is none.

    Its account must have permission to publish to the topic of the message.

    Args:
        properties: Properties of the half message.
    """

    def may_publish(channel: Channel) -> bool:
        address, topic = channel.peer.address[0], properties.get("REAL_TOPIC", "")
        return records.account_may(channel.account, address, topic, Action.PUB)

    return clients.producer(properties.get(PRODUCER_GROUP, ""), may_publish)


def check_request(
    half: Record,
    properties: Mapping[str, str],
    *,
    queue_offset: int,
    phys_offset: int,
    identity: Identity,
) -> Request:
    """Return the one-way check-back request for a half message.

    The body is the message with its real topic and queue, the times of `half` and the offsets of
    the newest copy.

    Args:
        half: The half message that the newest copy replaced.
        properties: Properties of the newest copy.
        queue_offset, phys_offset: Offsets of the newest copy in its queue and in the log.
    """
    topic = properties.get("REAL_TOPIC", half.topic)
    queue = properties.get("REAL_QID", "0")
    text = encode_properties({**properties, "WAIT": "false"})
    if len(text) > PROPERTIES_BYTES_MAX:  # an earlier version stored it without room
        text = half.property_text
    message = replace(
        half,
        topic=topic,
        queue_id=int(queue) if queue.isdigit() else 0,
        queue_offset=queue_offset,
        phys_offset=phys_offset,
        property_text=text,
        born_host=_as_ipv4(half.born_host),
        store_host=_as_ipv4(half.store_host),
    )
    key = properties.get(CLIENT_ID_KEY, "")
    address, port = identity.host
    request_fields = {
        "tranStateTableOffset": str(queue_offset),
        "commitLogOffset": str(phys_offset),
        "msgId": key,
        "transactionId": properties.get(TRANSACTION_ID, key),
        "offsetMsgId": encode_offset_id(address, port, phys_offset),
        "topic": HALF_TOPIC,
        "bname": identity.broker_name,
    }
    return Request(
        RequestCode.CHECK_TRANSACTION_STATE, request_fields, encode_record(message), oneway=True
    )


def _as_ipv4(host: Host) -> Host:
    """Return the host with an IPv4 address, as clients require; an IPv6 address gives 0.0.0.0."""
    address, port = host
    return (address if len(address) == 4 else bytes(4)), port
