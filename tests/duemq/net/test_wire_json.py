"""JSON between brokers, name servers and tools."""

from __future__ import annotations

from typing import Any

import pytest

from duemq.net.wire_json import QueueKey, encode, parse, parse_object, queue_table


def test_a_table_by_queue_has_objects_as_keys() -> None:
    table = {QueueKey("b", 0, "T"): {"maxOffset": 2}, QueueKey("b", 1, "T"): 5}
    assert encode({"offsetTable": queue_table(table), "tps": 0.0}) == (
        b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:{"maxOffset":2},'
        b'{"brokerName":"b","queueId":1,"topic":"T"}:5},"tps":0.0}'
    )
    assert encode({"offsetTable": queue_table({})}) == b'{"offsetTable":{}}'


@pytest.mark.parametrize(
    ("body", "value"),
    [(b"", {}), (b'{"a":[1]}', {"a": [1]}), (b'{"t":{0:"x"}}', {"t": {0: "x"}})],
)
def test_both_dialects_are_read(body: bytes, value: Any) -> None:
    assert parse(body) == value


@pytest.mark.parametrize("body", [b"{", b"\xff\xfe", b"[1,", b"nonsense", b"[" * 100_000])
def test_invalid_json_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError):
        parse(body)


def test_a_body_must_be_an_object() -> None:
    with pytest.raises(ValueError, match="list"):
        parse_object(b"[1]")
