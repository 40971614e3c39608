"""Encoding and decoding of the body of a registration (103).

    compressed=false   {"filterServerList":[],"topicConfigSerializeWrapper":{...}}
    compressed=true    zlib of: int32 length + version JSON, int32 count,
                       each int32 length + "name read write perm filterType [attributes]"; ...

Source: RegisterBrokerBody, TopicConfigSerializeWrapper, TopicConfig.encode/decode
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from duemq.net import wire_json
from duemq.registry.topic_config import TopicConfig
from duemq_common.data_version import DataVersion

PLAIN_BYTES_MAX = 32 << 20  # decompressed size of a compressed body
PLAIN_BYTES_SMALL = 1 << 20  # always allowed
EXPANSION_MAX = 64  # maximum ratio of decompressed to compressed size; real topic lists need less
CRC_MASK = 0x7FFF_FFFF
FILTER_SERVERS_MAX = 16
FILTER_SERVER_CHARS_MAX = 255


class RegistrationBody(Struct, frozen=True):
    """Topics of a broker, or only its changed topics, and their data version.

    Attributes:
        filter_servers: Entries of `filterServerList`, which the route table returns.
    """

    version: DataVersion
    topics: tuple[TopicConfig, ...]
    filter_servers: tuple[str, ...] = ()


def crc_of(body: bytes) -> int:
    """Return the `bodyCrc32` of an encoded body."""
    return zlib.crc32(body) & CRC_MASK


def encode_body(
    version: DataVersion,
    topics: Iterable[TopicConfig],
    now_ms: int,
    filter_servers: Sequence[str] = (),
) -> bytes:
    """Return the uncompressed body as 5.3.3 sends it."""
    wrapper = {
        "dataVersion": version.to_json(),
        "mappingDataVersion": DataVersion(0, now_ms).to_json(),
        "topicConfigTable": {topic.name: topic.to_json() for topic in topics},
        "topicQueueMappingDetailMap": {},
        "topicQueueMappingInfoMap": {},
    }
    return wire_json.encode(
        {"filterServerList": filter_servers, "topicConfigSerializeWrapper": wrapper}
    )


def decode_body(body: bytes, *, compressed: bool) -> RegistrationBody:
    """Decode a body; an empty one has no topics.

    Raises:
        ValueError: The body is invalid.
    """
    if not body:
        return RegistrationBody(DataVersion(), ())
    if compressed:
        return _decode_compressed(body)
    data = wire_json.parse_object(body)
    wrapper = data.get("topicConfigSerializeWrapper") or {}
    if not isinstance(wrapper, Mapping):
        raise ValueError("topicConfigSerializeWrapper is not an object")
    return RegistrationBody(
        DataVersion.from_json(wrapper.get("dataVersion")),
        read_topics(wrapper.get("topicConfigTable")),
        _filter_servers(data.get("filterServerList") or []),
    )


def _filter_servers(entries: object) -> tuple[str, ...]:
    if not isinstance(entries, list) or len(entries) > FILTER_SERVERS_MAX:
        raise ValueError(f"filterServerList is not a list of at most {FILTER_SERVERS_MAX} entries")
    if not all(isinstance(each, str) and len(each) <= FILTER_SERVER_CHARS_MAX for each in entries):
        raise ValueError("an entry of filterServerList is not a short text")
    return tuple(entries)


def read_topics(table: object) -> tuple[TopicConfig, ...]:
    """Return the topics of a `topicConfigTable`.

    Raises:
        ValueError: The table is invalid.
    """
    if table is None:
        return ()
    if not isinstance(table, Mapping):
        raise ValueError("topicConfigTable is not an object")
    return tuple(TopicConfig.from_json(value, str(name)) for name, value in table.items())


class _Parts:
    """Reader of length-prefixed parts of a decompressed body."""

    def __init__(self, data: bytes) -> None:
        self._data, self._position = data, 0

    def number(self) -> int:
        value = int.from_bytes(self._next_bytes(4), "big", signed=True)
        if value < 0:
            raise ValueError(
                f"the compressed body has a negative length at byte {self._position - 4}"
            )
        return value

    def part(self) -> bytes:
        return self._next_bytes(self.number())

    def _next_bytes(self, size: int) -> bytes:
        if self._position + size > len(self._data):
            raise ValueError(f"the compressed body ends at byte {len(self._data)}, inside a part")
        self._position += size
        return self._data[self._position - size : self._position]


def _decode_compressed(body: bytes) -> RegistrationBody:
    bytes_max = min(PLAIN_BYTES_MAX, max(PLAIN_BYTES_SMALL, len(body) * EXPANSION_MAX))
    unpacker = zlib.decompressobj()
    try:
        plain = unpacker.decompress(body, bytes_max)
    except zlib.error as error:
        raise ValueError(f"the compressed body is not a zlib stream: {error}") from error
    if unpacker.unconsumed_tail:
        raise ValueError(f"the body decompresses to more than {bytes_max} bytes")
    parts = _Parts(plain)
    version = DataVersion.from_json(wire_json.parse(parts.part()))
    count = parts.number()
    topics = tuple(_topic_of_text(parts.part().decode("utf-8")) for _ in range(count))
    return RegistrationBody(version, topics)


def _topic_of_text(text: str) -> TopicConfig:
    words = text.split(" ", 5)
    if len(words) < 5:
        raise ValueError(f"{text[:200]!r} must be name readQueues writeQueues perm filterType")
    name, read_queues, write_queues, perm, filter_type = words[:5]
    data = {
        "readQueueNums": read_queues,
        "writeQueueNums": write_queues,
        "perm": perm,
        "topicFilterType": filter_type,
        "attributes": wire_json.parse(words[5].encode()) if len(words) > 5 else {},
    }
    return TopicConfig.from_json(data, name)
