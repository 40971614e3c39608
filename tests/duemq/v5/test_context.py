"""Context of v5 calls: texts of the metadata that are kept."""

from __future__ import annotations

from typing import Any

import pytest

from duemq.v5.context import CallContext, Signature, context_of

TIME = "20261201T003000Z"
DIGITS = "ab" * 20


class Metadata:
    """Call with some header fields."""

    address, deadline_s = ("10.0.0.7", 1), None

    def __init__(self, **fields: str) -> None:
        self.fields = {"x_mq_client_id": "c"} | fields

    def text(self, name: bytes) -> str:
        return self.fields.get(name.decode().replace("-", "_"), "")


def context(key: str = "sale", digits: str = DIGITS, time: str = TIME, **more: str) -> CallContext:
    text = f"MQv2-HMAC-SHA1 Credential={key}/r/s, SignedHeaders=x-mq-date-time, Signature={digits}"
    call: Any = Metadata(authorization=text, x_mq_date_time=time, **more)
    return context_of(call)


def test_the_credentials_of_a_call() -> None:
    assert context().signature == Signature("sale", DIGITS, TIME)


@pytest.mark.parametrize("changes", [{"key": "k" * 256}, {"digits": "a" * 65}, {"time": "9" * 65}])
def test_credentials_with_a_long_text_match_no_secret(changes: dict[str, str]) -> None:
    assert context(**changes).signature == Signature("", "", "")


def test_a_long_version_is_truncated() -> None:
    assert context(x_mq_client_version="5" * 1_000).version == "5" * 64
