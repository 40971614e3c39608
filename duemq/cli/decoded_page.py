"""Records of a page of pending messages as lines of an export."""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

from duemq.cli.message_file import BROKER_PROPERTIES, PendingLine
from duemq.client.message import decompressed
from duemq.net.pending_pages import PendingPage
from duemq.registry.internal_topics import is_internal
from duemq_common.errors import RecordUnreadable
from duemq_common.topics import DLQ_PREFIX, RETRY_PREFIX
from message_store.log.properties import decode_properties, own_id
from message_store.log.record import Host, decode_record

DROPPED: Final = BROKER_PROPERTIES | {"UNIQ_KEY", "CLUSTER", "MSG_REGION", "TRACE_ON"}


class DecodedPage(NamedTuple):
    """Messages of a page.

    Attributes:
        store_hosts: Store host of each message.
        left_out: Number of messages that belong to groups or to the broker.
        damaged: Number of messages that cannot be read.
    """

    lines: list[PendingLine]
    store_hosts: list[Host]
    left_out: int
    damaged: int


def decode_page(page: PendingPage, topic: str = "") -> DecodedPage:
    """Return the messages of a page.

    Args:
        topic: Topic to select; empty for all topics.
    """
    view, position = memoryview(page.records), 0
    lines: list[PendingLine] = []
    store_hosts: list[Host] = []
    left_out, damaged = 0, len(page.unreadable)
    for size, due_ms in zip(page.sizes, page.due_ms, strict=True):
        start, position = position, position + size
        try:
            record = decode_record(view[start:position], start)
            properties = decode_properties(record.property_text)
            name = properties.get("REAL_TOPIC", "")
            if not is_of_application(name):
                left_out += 1
                continue
            if topic not in ("", name):
                continue
            body = decompressed(record.body, record.sys_flag) if record.sys_flag else record.body
        except (RecordUnreadable, ValueError, ImportError):
            damaged += 1
            continue
        queue_text = properties.get("REAL_QID", "0")
        # Without a unique id, the message gets one that is the same in each export.
        unique_id = (
            own_id(record.property_text)
            or properties.get("UNIQ_KEY")
            or (
                f"EXPORTED-{record.phys_offset:X}-{record.store_ms:X}"
                f"-{record.body_crc & 0xFFFFFFFF:08X}"
            )
        )
        lines.append(
            PendingLine(
                name,
                int(queue_text) if queue_text.isdecimal() and len(queue_text) < 10 else 0,
                unique_id,
                due_ms,
                {key: value for key, value in properties.items() if key not in DROPPED},
                body,
                record.flag,
                record.store_ms,
                record.phys_offset,
            )
        )
        store_hosts.append(record.store_host)
    return DecodedPage(lines, store_hosts, left_out, damaged)


@lru_cache(maxsize=1_024)
def is_of_application(topic: str) -> bool:
    """Return whether messages of a topic can be sent elsewhere."""
    return (
        bool(topic) and not is_internal(topic) and not topic.startswith((RETRY_PREFIX, DLQ_PREFIX))
    )
