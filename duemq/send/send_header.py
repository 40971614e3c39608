"""Header of a send request, and its property text. SendMessageRequestHeader(V2)"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from duemq.configuration.config import BrokerConfig
from duemq.net import fields
from duemq.send import layout
from duemq_common.codes import RequestCode
from duemq_common.config import INT_MAX
from duemq_common.request import Request
from message_store.layout import SYS_COMMIT, SYS_TRANSACTION_MASK
from message_store.log.properties import ENTRY_END, NAME_END

PRIORITY = "_SYS_MSG_PRIORITY_"
INT_DIGITS_MAX = 10
BROKER_PROPERTIES = frozenset({"MSG_REGION", "CLUSTER", "TRACE_ON"})


class SendHeader(Struct, frozen=True, kw_only=True):
    """Header fields of a send. Code 10 uses long names, codes 310 and 320 one letter each."""

    group: str
    topic: str
    default_topic: str
    default_queues: int
    queue_id: int
    sys_flag: int
    born_ms: int
    flag: int
    properties: str
    reconsume_times: int
    reconsume_times_max: int | None
    unit_mode: bool
    batch: bool


def parse_send(request: Request) -> SendHeader:
    """Parse the header of request codes 10, 310 and 320.

    Raises:
        RequestError: A mandatory field is missing, or a numeric field is not a number.
    """
    long = request.code == RequestCode.SEND_MESSAGE
    names = layout.SEND_FIELDS if long else tuple(layout.SEND_LETTERS)
    (group, topic, default_topic, default_queues, queue_id, sys_flag, born_ms, flag) = names[:8]
    (properties, times, unit_mode, times_max, batch, _) = names[8:]
    return SendHeader(
        group=fields.text(request, group),
        topic=fields.text(request, topic),
        default_topic=fields.text(request, default_topic),
        default_queues=fields.integer(request, default_queues),
        queue_id=fields.integer(request, queue_id),
        sys_flag=_without_commit(fields.integer(request, sys_flag)),
        born_ms=fields.long(request, born_ms),
        flag=fields.integer(request, flag),
        properties=request.fields.get(properties, ""),
        reconsume_times=fields.integer(request, times, 0),
        reconsume_times_max=(
            fields.integer(request, times_max) if request.fields.get(times_max) else None
        ),
        unit_mode=fields.boolean(request, unit_mode),
        batch=request.code == RequestCode.SEND_BATCH_MESSAGE or fields.boolean(request, batch),
    )


def _without_commit(sys_flag: int) -> int:
    """Return a client's system flag without the commit bits, which only a broker may set."""
    is_commit = sys_flag & SYS_TRANSACTION_MASK == SYS_COMMIT
    return sys_flag & ~SYS_TRANSACTION_MASK if is_commit else sys_flag


def broker_suffix(config: BrokerConfig) -> bytes:
    """Return the encoded properties that 5.3.3 appends to every message of a client."""
    trace = "true" if config.trace_on else "false"
    pairs = (
        ("MSG_REGION", config.region_id),
        ("CLUSTER", config.cluster_name),
        ("TRACE_ON", trace),
    )
    return "".join(f"{name}{NAME_END}{value}{ENTRY_END}" for name, value in pairs).encode()


def client_entries(text: str) -> list[tuple[str, str]]:
    """Return the name-value pairs of a client's property text, without broker properties.

    The order is that of the text. Entries without a name or a value are dropped. Duplicates are
    preserved; readers of properties use the last one.
    """
    pairs = []
    for entry in text.split(ENTRY_END):
        name, _, value = entry.partition(NAME_END)
        if name and value and name not in BROKER_PROPERTIES:
            pairs.append((name, value))
    return pairs


def property_bytes(entries: list[tuple[str, str]], suffix: bytes) -> bytes:
    """Return the stored property text: the client's entries, then the broker's `suffix`."""
    text = "".join([f"{name}{NAME_END}{value}{ENTRY_END}" for name, value in entries])
    return text.encode("utf-8", "replace") + suffix


def priority_of(properties: Mapping[str, str]) -> int:
    """Return the priority of a message; -1 without one, or if it is not a 32-bit number.

    Source: Message.getPriority
    """
    text = properties.get(PRIORITY, "")
    digits = text.removeprefix("+")
    if not (digits.isascii() and digits.isdigit()) or len(digits) > INT_DIGITS_MAX:
        return -1
    value = int(digits)
    return value if value <= INT_MAX else -1


def may_have_priority(properties: Mapping[str, str]) -> bool:
    """Return whether a priority selects the queue of a message: it is in no order and no half.

    Apache's broker also removes the priority of a delayed message.

    Source: TopicMessageType.parseFromMessageProperty
    """
    is_half = properties.get("TRAN_MSG", "").lower() == "true"
    return not is_half and "__SHARDINGKEY" not in properties
