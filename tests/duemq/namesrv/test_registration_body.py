"""The body of 103, plain and compressed."""

from __future__ import annotations

import contextlib
import json
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duemq.namesrv import registration_body
from duemq.namesrv.registration_body import RegistrationBody, crc_of, decode_body, encode_body
from duemq.registry.topic_config import TopicConfig
from duemq_common.data_version import DataVersion

VERSION = DataVersion(3, 1_700_000_000_000, 0)
TOPICS = (
    TopicConfig(name="T", read_queues=4, write_queues=2),
    TopicConfig(name="U", perm=2, attributes={"message.type": "DELAY"}),
)


def part(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


def compressed(*texts: str, count: int | None = None, tail: bytes = b"") -> bytes:
    version = json.dumps(VERSION.to_json()).encode()
    number = (len(texts) if count is None else count).to_bytes(4, "big", signed=True)
    plain = part(version) + number + b"".join(part(text.encode()) for text in texts)
    return zlib.compress(plain + part(b"[]") + tail)


def test_what_we_send_is_read_again() -> None:
    body = encode_body(VERSION, TOPICS, 17)
    assert decode_body(body, compressed=False) == RegistrationBody(VERSION, TOPICS)
    assert b" " not in body
    assert 0 <= crc_of(body) < 1 << 31


def test_we_send_what_5_3_3_sends() -> None:
    wrapper = json.loads(encode_body(VERSION, TOPICS, 17))["topicConfigSerializeWrapper"]
    assert sorted(wrapper) == [
        "dataVersion",
        "mappingDataVersion",
        "topicConfigTable",
        "topicQueueMappingDetailMap",
        "topicQueueMappingInfoMap",
    ]


def test_the_filter_servers_are_read_again() -> None:
    servers = ("grpc://10.0.0.1:8081",)
    body = encode_body(VERSION, TOPICS, 17, servers)
    assert decode_body(body, compressed=False).filter_servers == servers


@pytest.mark.parametrize("servers", [1, {}, [1], ["x" * 256], ["x"] * 17])
def test_invalid_filter_servers_are_refused(servers: object) -> None:
    with pytest.raises(ValueError, match="filterServerList"):
        decode_body(json.dumps({"filterServerList": servers or 1}).encode(), compressed=False)


def test_an_empty_body_holds_no_topics() -> None:
    assert decode_body(b"", compressed=False) == RegistrationBody(DataVersion(), ())
    assert decode_body(b"", compressed=True) == RegistrationBody(DataVersion(), ())
    assert decode_body(b"{}", compressed=False).topics == ()


@pytest.mark.parametrize("tail", [b"", (0).to_bytes(4, "big")])
def test_compressed_bodies_of_both_versions_are_read(tail: bytes) -> None:
    body = compressed(
        "T 4 2 6 SINGLE_TAG", 'U 16 16 2 SINGLE_TAG {"message.type":"DELAY"}', tail=tail
    )
    assert decode_body(body, compressed=True) == RegistrationBody(VERSION, TOPICS)


@pytest.mark.parametrize(
    ("body", "is_compressed"),
    [
        (b"{", False),
        (b"[]", False),
        (b'{"topicConfigSerializeWrapper":[1]}', False),
        (b'{"topicConfigSerializeWrapper":{"topicConfigTable":[1]}}', False),
        (b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"T":{"perm":"x"}}}}', False),
        (b'{"topicConfigSerializeWrapper":{"dataVersion":5}}', False),
        (b"not a zlib", True),
        (zlib.compress(b"\0\0"), True),
        (zlib.compress(part(b"nonsense")), True),
        (zlib.compress((-5).to_bytes(4, "big", signed=True)), True),
        (compressed("T 4 2 6"), True),
        (compressed("T four 2 6 SINGLE_TAG"), True),
        (compressed("T 4 2 6 SINGLE_TAG", count=7), True),
        (compressed(count=-1), True),
    ],
)
def test_malformed_bodies_are_refused(body: bytes, is_compressed: bool) -> None:
    with pytest.raises(ValueError):
        decode_body(body, compressed=is_compressed)


def test_a_body_that_unpacks_to_too_much_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registration_body, "PLAIN_BYTES_MAX", 1_000)
    with pytest.raises(ValueError, match="1000"):
        decode_body(zlib.compress(bytes(1_001)), compressed=True)


@given(data=st.binary(max_size=200), is_compressed=st.booleans(), packed=st.booleans())
def test_no_bytes_break_the_reader(data: bytes, is_compressed: bool, packed: bool) -> None:
    with contextlib.suppress(ValueError):
        decode_body(zlib.compress(data) if packed else data, compressed=is_compressed)


JSON: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


@given(
    version=JSON,
    table=st.dictionaries(
        st.text(max_size=5),
        JSON
        | st.fixed_dictionaries(
            {}, optional={"perm": JSON, "readQueueNums": JSON, "attributes": JSON, "order": JSON}
        ),
    ),
)
def test_no_json_breaks_the_reader(version: Any, table: Any) -> None:
    wrapper = {"dataVersion": version, "topicConfigTable": table}
    with contextlib.suppress(ValueError):
        decode_body(json.dumps({"topicConfigSerializeWrapper": wrapper}).encode(), compressed=False)
