"""Messages with handles that the kernel writes, against those encoded in Python."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from duemq.pop.queue_reader import QueueReader, ReadResult
from duemq.pop.receipts import Receipt
from duemq_common.clock import FakeClock
from tests.support.encoded_records import encode_record
from tests.support.fakes import FakeStore

TOPIC, RETRY = "T", "%RETRY%g_T"
RECEIPT = Receipt(12, 34, 56, 7, "1", "broker", 0)
LONG = "n" * 200
TEXTS = st.lists(st.sampled_from(["KEYS\x01k\x02", "TAGS\x01\u00e4\x02", "a\x01b\x02"]), max_size=3)


def record(
    text: str, offset: int, *, topic: str = RETRY, flags: int = 0, body: bytes = b"body"
) -> bytes:
    return encode_record(
        topic=topic,
        queue_id=0,
        body=body,
        property_text=text.encode(),
        queue_offset=offset,
        phys_offset=99,
        born_ms=12,
        born_host=(bytes(16 if flags else 4), 1),
        store_ms=13,
        store_host=(bytes(4), 2),
        sys_flag=flags,
    )


def responses(*records: bytes, topic: str = TOPIC) -> list[bytes]:
    """Return the messages of the reader with the kernel, and without it."""
    found = ReadResult(0, 9, np.zeros(0), tuple(range(len(records))), b"".join(records))
    store = FakeStore(FakeClock())
    readers = [QueueReader(store, lambda value=value: value) for value in (True, False)]  # type: ignore[misc]
    return [reader.retry_records(found, topic, RECEIPT) for reader in readers]


@given(
    st.lists(
        st.builds(
            record,
            TEXTS.map("".join),
            st.sampled_from([0, 9, 10, 2**40]),
            flags=st.sampled_from([0, 16]),
            body=st.sampled_from([b"", b"x" * 300]),
        ),
        max_size=4,
    ),
    st.sampled_from([TOPIC, "U" * 127]),
)
def test_the_kernel_writes_the_messages_that_python_encodes(
    records: list[bytes], topic: str
) -> None:
    kernel, plain = responses(*records, topic=topic)
    assert kernel == plain
    assert plain.count(b"POP_CK\x0112 34 56 7 1 broker 0 ") == len(records)


def test_records_of_another_form_are_encoded_in_python() -> None:
    for each in (
        record("KEYS\x01k", 1),
        record("KEYS\x01k\x02POP_CK\x01old\x02", 1),
        record("", 1, topic=LONG),
    ):
        kernel, plain = responses(record("", 0), each)
        assert kernel == plain
        assert plain.count(b"POP_CK\x01") == 2
    kernel, plain = responses(record("", 0), topic=LONG)
    assert kernel == plain
