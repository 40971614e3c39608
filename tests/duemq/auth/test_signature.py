"""Signatures: the bytes that clients sign, and their comparison."""

from __future__ import annotations

import base64
import hashlib
import hmac

import pytest

from duemq.auth.signature import VERSION_4_9_3, is_signed, sign, signed_bytes

FIELDS = {"topic": "orders", "AccessKey": "alice", "a": "group", "B": "upper"}


def test_values_are_sorted_by_name_and_followed_by_the_body() -> None:
    assert signed_bytes(FIELDS, b"body", 479) == b"aliceuppergroupordersbody"


def test_the_signature_itself_is_not_signed() -> None:
    assert signed_bytes(FIELDS | {"Signature": "x"}, b"", 479) == signed_bytes(FIELDS, b"", 479)


@pytest.mark.parametrize(
    ("version", "content"), [(VERSION_4_9_3, b"alice"), (VERSION_4_9_3 + 1, b"alicetrue")]
)
def test_old_clients_do_not_sign_the_query_by_unique_key(version: int, content: bytes) -> None:
    fields = {"AccessKey": "alice", "_UNIQUE_KEY_QUERY": "true"}
    assert signed_bytes(fields, b"", version) == content


def test_a_signature_is_hmac_sha1_as_base64() -> None:
    expected = hmac.new(b"secret", b"content", hashlib.sha1).digest()
    assert base64.b64decode(sign(b"content", "secret")) == expected


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, True),
        ({"topic": "other"}, False),
        ({"Signature": "AAAA"}, False),
        ({"Signature": "ä"}, False),
        ({"extra": "field"}, False),
        ({"extra": ""}, True),  # an empty value adds no bytes, as in Apache's broker
    ],
)
def test_changed_requests_are_not_signed(changed: dict[str, str], expected: bool) -> None:
    signature = sign(signed_bytes(FIELDS, b"body", 479), "secret")
    fields = FIELDS | {"Signature": signature} | changed
    assert is_signed(fields, b"body", 479, "secret") is expected
    assert not is_signed(fields, b"other body", 479, "secret")
    assert not is_signed(fields, b"body", 479, "other secret")


def test_a_request_without_a_signature_is_not_signed() -> None:
    assert not is_signed(FIELDS, b"body", 479, "secret")
