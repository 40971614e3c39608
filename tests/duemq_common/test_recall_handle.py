"""Recall handle: Apache's bytes, malformed handles."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duemq_common.recall_handle import HandleError, RecallHandle, decode_handle

# Computed with the Java standard library.
VECTOR = (
    "djEgVCBicm9rZXItYSAxNzAwMDAwMDAwMDAxIDdGMDAwMDAxMDAwMDJBOUY0QjNDMThCNEFBQzIwMDAw",
    RecallHandle("T", "broker-a", "1700000000001", "7F00000100002A9F4B3C18B4AAC20000"),
)
# What Apache 5.3.3 answered a Java client.
RECORDED = (
    "djEgR29sZGVuVGltZXIgYnJva2VyLWEgMTc5NTIyNTgzNDAwMSBGRDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAw"
    "MjJGNDUzMDk0NkUwOTY3NjQ2NEIzMDA2MA==",
    RecallHandle(
        "GoldenTimer",
        "broker-a",
        "1795225834001",
        "FD0000000000000000000000000000022F4530946E09676464B30060",
    ),
)


@pytest.mark.parametrize(("text", "handle"), [VECTOR, RECORDED])
def test_handles_equal_those_of_apache(text: str, handle: RecallHandle) -> None:
    assert handle.encode() == text
    assert decode_handle(text) == handle
    assert decode_handle(text.rstrip("=")) == handle  # Java's decoder wants no padding


def encoded(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode()


@pytest.mark.parametrize(
    ("rule", "text", "reason"),
    [
        ("nothing", "", "empty"),
        ("no base64", "not a handle!", "not base64"),
        ("one character too few", RECORDED[0].rstrip("=")[:-1] + "*", "not base64"),
        ("the other alphabet", "djE+", "not base64"),
        ("no UTF-8", encoded(b"v1 \xff\xfe b 1 k"), "not base64"),
        ("another version", encoded(b"v2 T b 1 k"), "version"),
        ("no key", encoded(b"v1 T b 1"), "incomplete"),
        ("an empty key", encoded(b"v1 T b 1 "), "incomplete"),
        ("an empty topic", encoded(b"v1  b 1 k"), "incomplete"),
        ("far too long", "A" * 5_000, "5000 characters"),
    ],
)
def test_malformed_handles(rule: str, text: str, reason: str) -> None:
    with pytest.raises(HandleError, match=reason):
        decode_handle(text)


def test_a_truncated_handle_is_refused_or_has_a_shorter_key() -> None:
    for cut in range(len(RECORDED[0])):
        try:
            handle = decode_handle(RECORDED[0][:cut])
        except HandleError:
            continue
        assert RECORDED[1].unique_id.startswith(handle.unique_id), cut


@given(st.text(max_size=60))
def test_any_text_is_decoded_or_raises_handle_error(text: str) -> None:
    try:
        handle = decode_handle(text)
    except HandleError:
        return
    assert all((handle.topic, handle.broker_name, handle.time_text, handle.unique_id))
