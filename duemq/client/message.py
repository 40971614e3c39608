"""Messages to send, and messages as received."""

from __future__ import annotations

import importlib
import ipaddress
import zlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cached_property
from types import ModuleType
from typing import Final

from msgspec import Struct, field

from message_store.log import layout
from message_store.log.offset_id import encode_offset_id
from message_store.log.properties import ENTRY_END, NAME_END
from message_store.log.record import Record

RESERVED: Final = frozenset(
    {
        "CLUSTER",
        "CORRELATION_ID",
        "DELAY",
        "KEYS",
        "MIN_OFFSET",
        "MAX_OFFSET",
        "MSG_REGION",
        "ORIGIN_GROUP",
        "PGROUP",
        "REAL_QID",
        "REAL_TOPIC",
        "RECONSUME_TIME",
        "REPLY_TO_CLIENT",
        "RETRY_TOPIC",
        "TAGS",
        "TIMER_DELAY_MS",
        "TIMER_DELAY_SEC",
        "TIMER_DELIVER_MS",
        "TIMER_DEL_UNIQKEY",
        "TIMER_OUT_MS",
        "TRAN_MSG",
        "TTL",
        "UNIQ_KEY",
        "WAIT",
        "_SYS_MSG_PRIORITY_",
        "__LITE_TOPIC",
        "__SHARDINGKEY",
        "__transactionId__",
    }
)
"""Properties that the client or the broker sets. MessageConst"""
PRIORITY_MAX: Final = (1 << 31) - 1
COMPRESSION_TYPE_SHIFT: Final = 8
COMPRESSION_TYPE_MASK: Final = 0x7
LZ4, ZSTD = 1, 2
MILLISECOND: Final = timedelta(milliseconds=1)
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class TopicAndBody(Struct):
    """Fields of a message that may be positional arguments."""

    topic: str
    body: bytes = b""


class Message(TopicAndBody, kw_only=True):
    """Message to send.

    Args:
        topic: Topic, without separators.
        body: Content; a broker accepts 4 MiB unless it is configured otherwise.
        tag: One tag, for filters.
        keys: Keys, by which the message can be found; without blanks.
        properties: Properties of the application.
        delay: Delay from the arrival at the broker, in whole milliseconds.
        deliver_at: Due time, with a time zone; in the past: delivered at once.
        level: Delay level, from 1.
        sharding_key: Messages with the same key go to the same queue, in order.
        priority: Priority from 0, the lowest; the queue of the message. Apache's brokers know it
            from 5.4 on, and ignore that of a delayed message.
        flag: Number of the application that the broker stores.
        wait_stored: Whether the broker responds when the message is on the disk and on replicas, as
            it is configured; False: when it is written.
    Attributes:
        message_id: Unique id, set by the first send.
    Raises:
        ValueError: A value cannot be sent; the text says which and why.
    """

    tag: str = ""
    keys: Sequence[str] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    delay: timedelta | None = None
    deliver_at: datetime | None = None
    level: int = 0
    sharding_key: str = ""
    priority: int | None = None
    flag: int = 0
    wait_stored: bool = True
    message_id: str = ""

    def __post_init__(self) -> None:
        if isinstance(self.keys, str):
            self.keys = (self.keys,)
        if not self.topic:
            raise ValueError("the topic is empty")
        if type(self.body) is not bytes:
            if not isinstance(self.body, bytes | bytearray | memoryview):
                raise TypeError(f"the body is {type(self.body).__name__}, not bytes")
            self.body = bytes(self.body)
        if self.delay is not None or self.deliver_at is not None or self.level:
            self._check_delay()
        if self.priority is not None:
            self._check_priority(self.priority)
        if self.properties and not RESERVED.isdisjoint(self.properties):
            wrong = sorted(RESERVED & self.properties.keys())
            raise ValueError(f"property {wrong[0]} is set by the client or the broker")

    def _check_delay(self) -> None:
        if (self.delay is not None) + (self.deliver_at is not None) + (self.level != 0) > 1:
            raise ValueError("delay, deliver_at and level exclude each other: give one")
        if self.delay is not None and self.delay < timedelta(0):
            raise ValueError(f"the delay {self.delay} is negative")
        if self.deliver_at is not None and self.deliver_at.tzinfo is None:
            raise ValueError(
                f"deliver_at {self.deliver_at.isoformat()} has no time zone: give one, for example "
                "datetime.now(UTC) + timedelta(hours=1)"
            )
        if self.level < 0:
            raise ValueError(f"level {self.level} is negative; levels begin at 1")

    def _check_priority(self, priority: int) -> None:
        if not 0 <= priority <= PRIORITY_MAX:
            raise ValueError(f"priority {priority} is not a number from 0 to {PRIORITY_MAX}")
        if self.sharding_key:
            raise ValueError("priority and sharding_key exclude each other: give one")

    @property
    def is_timer(self) -> bool:
        """Whether the message has a due time or a delay that is not a level."""
        return self.delay is not None or self.deliver_at is not None

    def property_text(self, more: Mapping[str, str]) -> str:
        """Return the property text of the message with further properties.

        Raises:
            ValueError: A name or value contains a separator (0x01, 0x02), or a key a blank.
        """
        pairs = dict(self.properties)
        if self.tag:
            pairs["TAGS"] = self.tag
        if self.keys:
            if any(" " in key or not key for key in self.keys):
                raise ValueError(f"keys {list(self.keys)} are empty or contain a blank")
            pairs["KEYS"] = " ".join(self.keys)
        if self.delay is not None:
            pairs["TIMER_DELAY_MS"] = str(-(-self.delay // MILLISECOND))
        elif self.deliver_at is not None:
            pairs["TIMER_DELIVER_MS"] = str(milliseconds(self.deliver_at))
        elif self.level:
            pairs["DELAY"] = str(self.level)
        if self.priority is not None:
            pairs["_SYS_MSG_PRIORITY_"] = str(self.priority)
        if self.sharding_key:
            pairs["__SHARDINGKEY"] = self.sharding_key
        wait = "true" if self.wait_stored else "false"
        count = len(pairs) + 2
        text = f"UNIQ_KEY{NAME_END}{self.message_id}{ENTRY_END}WAIT{NAME_END}{wait}{ENTRY_END}"
        if more:  # they may replace the others
            pairs |= {"UNIQ_KEY": self.message_id, "WAIT": wait, **more}
            count, text = len(pairs), ""
        if pairs:
            own = [f"{name}{NAME_END}{value}{ENTRY_END}" for name, value in pairs.items()]
            text = "".join(own) + text
        if text.count(NAME_END) != count or text.count(ENTRY_END) != count:
            raise ValueError("a property contains 0x01 or 0x02, which separate properties")
        return text


def milliseconds(when: datetime) -> int:
    """Return the first whole millisecond since the epoch that is not before `when`.

    Raises:
        ValueError: `when` has no time zone.
    """
    if when.tzinfo is None:
        raise ValueError(f"the time {when.isoformat()} has no time zone")
    return -((EPOCH - when) // MILLISECOND)


class MessageQueue(Struct, frozen=True):
    """Queue of a topic."""

    topic: str
    broker_name: str
    queue_id: int


class ReceivedMessage:
    """Message as received.

    Args:
        record: Record of the message.
        queue: MessageQueue it was read from.
    Attributes:
        topic: Topic; of a retried message, the topic of the first delivery.
    """

    __slots__ = ("__dict__", "queue", "record")

    def __init__(self, record: Record, queue: MessageQueue) -> None:
        self.record, self.queue = record, queue

    def __repr__(self) -> str:
        return f"<ReceivedMessage {self.message_id} of {self.topic}>"

    @property
    def properties(self) -> Mapping[str, str]:
        """All properties, those of the broker too."""
        return self.record.properties

    @property
    def topic(self) -> str:
        """Topic; of a retried message, the topic of the first delivery."""
        return self.properties.get("RETRY_TOPIC") or self.record.topic

    @cached_property
    def body(self) -> bytes:
        """Content, decompressed.

        Raises:
            ValueError: The content cannot be decompressed.
        """
        return decompressed(self.record.body, self.record.sys_flag)

    @property
    def tag(self) -> str:
        """Tag, empty if there is none."""
        return self.properties.get("TAGS", "")

    @property
    def keys(self) -> list[str]:
        """Keys of the message."""
        return self.properties.get("KEYS", "").split()

    @property
    def message_id(self) -> str:
        """Unique id that the producer has given, else the offset message id."""
        return self.properties.get("UNIQ_KEY") or self.offset_message_id

    @property
    def offset_message_id(self) -> str:
        """Address of the broker and log offset as hexadecimal digits."""
        address, port = self.record.store_host
        return encode_offset_id(address, port, self.record.phys_offset)

    @property
    def priority(self) -> int | None:
        """Priority of the message; None if it has none."""
        text = self.properties.get("_SYS_MSG_PRIORITY_", "")
        return int(text) if text.isascii() and text.isdigit() else None

    @property
    def queue_offset(self) -> int:
        """Position in the queue."""
        return self.record.queue_offset

    @property
    def delivery_attempt(self) -> int:
        """1 for the first delivery, one more for each retry."""
        return self.record.reconsume_times + 1

    @property
    def born_at(self) -> datetime:
        """Time at which the producer sent the message."""
        return time_of(self.record.born_ms)

    @property
    def stored_at(self) -> datetime:
        """Time at which the broker stored the message; a delayed one: delivered it."""
        return time_of(self.record.store_ms)

    @property
    def born_host(self) -> str:
        """IP address of the producer."""
        return str(ipaddress.ip_address(self.record.born_host[0]))


def time_of(ms: int) -> datetime:
    """Return a time in UTC."""
    return EPOCH + timedelta(milliseconds=ms)


def decompressed(body: bytes, sys_flag: int) -> bytes:
    """Return a body as it was before compression.

    Raises:
        ValueError: The body cannot be decompressed.
        ImportError: Its compression needs a package that is not installed.
    Source: Compressor, CompressionType
    """
    if not sys_flag & layout.SYS_COMPRESSED:
        return body
    content: bytes
    kind = sys_flag >> COMPRESSION_TYPE_SHIFT & COMPRESSION_TYPE_MASK
    if kind == ZSTD:
        zstandard = _module("zstandard", "zstd")
        try:
            content = zstandard.ZstdDecompressor().decompressobj().decompress(body)
        except zstandard.ZstdError as error:
            raise ValueError(f"the body is not zstd: {error}") from error
        return content
    if kind == LZ4:
        lz4 = _module("lz4.frame", "LZ4")
        try:
            content = lz4.decompress(body)
        except RuntimeError as error:
            raise ValueError(f"the body is not LZ4: {error}") from error
        return content
    try:
        return zlib.decompress(body)
    except zlib.error as error:
        raise ValueError(f"the body is not zlib: {error}") from error


def _module(name: str, compression: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(
            f"the body is compressed with {compression}: install duemq[compression]"
        ) from error
