"""Target of a redirected record."""

from __future__ import annotations

import pytest

from delayed_delivery.redirected import (
    NoTarget,
    owner_letter,
    queue_number,
    real_target,
    without,
    without_last,
)
from duemq_common.topics import HALF_TOPIC
from message_store.queues.topic_table import TopicTable


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        ({"REAL_TOPIC": "T", "REAL_QID": "3"}, ("T", 3)),
        ({"REAL_TOPIC": "T"}, "no_target"),
        ({"REAL_QID": "3"}, "no_target"),
        ({"REAL_TOPIC": "held", "REAL_QID": "3"}, "no_target"),
        ({"REAL_TOPIC": HALF_TOPIC, "REAL_QID": "0"}, "half_message"),
        ({"REAL_TOPIC": "never seen", "REAL_QID": "0"}, "topic_missing"),
        ({"REAL_TOPIC": "unrouted", "REAL_QID": "0"}, "topic_missing"),
    ],
)
def test_target(properties: dict[str, str], expected: str | tuple[str, int]) -> None:
    topics = TopicTable()
    topics.set_routing("T", write_queues=4, read_queues=4, perm=6)
    for name in ("unrouted", "held", HALF_TOPIC):
        topics.add(name)
    found = real_target(properties, topics, "held", routed=True)
    if isinstance(found, NoTarget):
        assert found.reason == expected
    else:
        assert (topics.name(found[0]), found[1]) == expected


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        (b"a\x011\x02n\x012\x02", b"a\x011\x02"),
        (b"n\x012\x02", b""),
        (b"n\x011\x02n\x012\x02", b"n\x011\x02"),
        (b"n\x011\x02a\x012\x02", None),
        (b"a\x011\x02nn\x012\x02", None),
        (b"a\x011\x02n\x012", None),  # no entry ends it: the client wrote it
        (b"", None),
    ],
)
def test_the_last_entry_is_removed_if_it_has_the_name(text: bytes, rest: bytes | None) -> None:
    assert without_last(text, b"n") == (text if rest is None else rest)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0),
        ("+2", 2),
        ("65535", 65_535),
        ("65536", -1),
        ("-1", -1),
        ("", -1),
        ("x", -1),
        ("9999999999", -1),
        ("++1", -1),
        ("\u0661", -1),
    ],
)
def test_queue_number(text: str, expected: int) -> None:
    assert queue_number(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"", b""),
        (b"a\x01b", b"a\x01b"),
        (b"a\x01b\x02__CRC32#\x018784913581\x02", b"a\x01b\x02"),
        (b"__CRC32#\x018\x02a\x01b\x02", b"a\x01b\x02"),
        (b"T\x011\x02a\x01T\x011\x02T\x012", b"a\x01T\x011"),
        (b"TT\x011\x02", b"TT\x011\x02"),
    ],
)
def test_without(text: bytes, expected: bytes) -> None:
    assert without(text, b"__CRC32#", b"T") == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("DELAY\x013\x02REAL_QID\x010\x02", 4),
        ("REAL_QID\x010\x02DELAy\x013", 15),
        ("K\x01DELAY\x02", -1),  # a value
        ("DELAYS\x013\x02DELA\x01Y\x02", -1),
        ("DELAY\x013\x02DELAy\x013\x02", -1),
        ("DELAY\x013\x02__CRC32#\x01123\x02", -1),
        ("", -1),
    ],
)
def test_the_letter_of_the_owner(text: str, expected: int) -> None:
    assert owner_letter(text.encode()) == expected
