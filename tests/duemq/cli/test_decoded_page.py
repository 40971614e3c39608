"""Lines of an export, from the records of a page."""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from duemq.cli.decoded_page import decode_page
from duemq.cli.message_file import MessageFileWriter, read_file
from duemq.net.pending_pages import PendingPage
from message_store.log.layout import SYS_COMPRESSED
from message_store.log.properties import encode_properties
from message_store.log.record import Record, encode_record

RECORD = Record(
    total_size=0,
    magic=0,
    body_crc=0,
    queue_id=0,
    flag=7,
    queue_offset=3,
    phys_offset=4_711,
    sys_flag=0,
    born_ms=1,
    born_host=(b"\x7f\0\0\1", 1_000),
    store_ms=2,
    store_host=(b"\x0a\0\0\1", 10_911),
    reconsume_times=0,
    prepared_offset=0,
    body=b"body",
    topic="rmq_sys_wheel_timer",
    property_text=b"",
)
TEXTS = st.text(st.characters(exclude_characters="\x01\x02", codec="utf-8"), min_size=1)


def record_of(**properties: str) -> Record:
    return replace(RECORD, property_text=encode_properties(properties))


def page_of(*records: bytes) -> PendingPage:
    return PendingPage([*range(len(records))], [*map(len, records)], b"".join(records))


def test_properties_of_the_broker_are_left_out() -> None:
    record = record_of(REAL_TOPIC="orders", REAL_QID="3", UNIQ_KEY="id", KEYS="k", TIMER_OUT_MS="9")
    decoded = decode_page(page_of(encode_record(record)))
    [line] = decoded.lines
    assert (line.topic, line.queue_id, line.unique_id) == ("orders", 3, "id")
    assert line.properties == {"KEYS": "k"}
    assert (line.body, line.flag, line.store_ms, line.phys_offset) == (b"body", 7, 2, 4_711)
    assert decoded.store_hosts == [(b"\x0a\0\0\1", 10_911)]


def test_only_one_topic_is_selected() -> None:
    records = [encode_record(record_of(REAL_TOPIC=name)) for name in ("a", "b", "%RETRY%g", "")]
    decoded = decode_page(page_of(*records), "b")
    assert [line.topic for line in decoded.lines] == ["b"]
    assert decoded.left_out == 2


def test_damaged_messages_are_counted_and_others_are_read() -> None:
    record = record_of(REAL_TOPIC="orders")
    sound = encode_record(record)
    torn = sound.replace(b"body", b"bodx")
    invalid = encode_record(replace(record, sys_flag=SYS_COMPRESSED))  # the body is not zlib
    compressed = replace(record, body=zlib.compress(b"large"), sys_flag=SYS_COMPRESSED)
    decoded = decode_page(page_of(torn, invalid, sound, encode_record(compressed)))
    assert [line.body for line in decoded.lines] == [b"body", b"large"]
    assert [line.due_ms for line in decoded.lines] == [2, 3]
    assert decoded.damaged == 2


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
@given(properties=st.dictionaries(TEXTS, TEXTS), body=st.binary())
def test_a_file_has_all_properties(
    suffix: str, properties: dict[str, str], body: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    record = record_of(**properties, REAL_TOPIC="orders", UNIQ_KEY="id")
    records = [replace(record, body=body), replace(record, born_host=(bytes(16), 1))]
    path: Path = tmp_path_factory.mktemp("file") / f"pending{suffix}"
    decoded = decode_page(page_of(*map(encode_record, records)))
    with MessageFileWriter(path, {}) as writer:
        writer.write(decoded.lines)
    first, second = read_file(path)
    assert [first.body, second.body] == [body, b"body"]
    assert first.properties == second.properties == decoded.lines[0].message().properties


def test_a_message_of_a_batch_has_its_own_id() -> None:
    """Java clients send it in the message's properties; those of the batch follow."""
    texts = [b"UNIQ_KEY\x01own-%d\x02WAIT\x01true\x02UNIQ_KEY\x01of-the-batch" % n for n in (1, 2)]
    target = encode_properties({"REAL_TOPIC": "orders"})
    records = [replace(RECORD, property_text=target + text) for text in texts]
    decoded = decode_page(page_of(*map(encode_record, records)))
    assert [line.unique_id for line in decoded.lines] == ["own-1", "own-2"]
