"""Columns of a batch that are derived from the property text."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from message_store import layout
from message_store.log.batch import PutBatch

NAMES = ("UNIQ_KEY", "XUNIQ_KEY", "UNIQ_KEYS", "WAIT", "REAL_TOPIC", "__SHARDINGKEY", "TAGS", "")
ENTRIES = st.lists(
    st.tuples(st.sampled_from(NAMES), st.sampled_from(["", "a", "false", "x\x01y", "ü"])),
    max_size=6,
)


def place_of(text: bytes) -> tuple[int, int]:
    """Return start and length of the last UNIQ_KEY with a value, (0, 0) without one."""
    found, pos = (0, 0), 0
    for entry in text.split(b"\x02"):
        name, separator, value = entry.partition(b"\x01")
        if name == b"UNIQ_KEY" and separator and value:
            found = pos + len(name) + 1, len(value)
        pos += len(entry) + 1
    return found


def add(batch: PutBatch, properties: bytes) -> int:
    host = (b"\x7f\0\0\1", 1)
    return batch.add(
        topic_index=0,
        queue_id=0,
        body=b"body",
        properties=properties,
        born_ms=1,
        born_host=host,
        store_host=host,
    )


@given(entries=ENTRIES, is_terminated=st.booleans())
@example(entries=[("UNIQ_KEY", "a"), ("UNIQ_KEY", "")], is_terminated=True)
@example(entries=[("XUNIQ_KEY", "a"), ("TAGS", "UNIQ_KEY\x01a")], is_terminated=False)
def test_the_place_of_the_unique_id_is_that_of_its_last_value(
    entries: list[tuple[str, str]], is_terminated: bool
) -> None:
    text = "\x02".join(f"{name}\x01{value}" for name, value in entries).encode()
    text += b"\x02" if is_terminated else b""
    batch = PutBatch(1)
    row = batch.rows[add(batch, text)]
    start, size = place_of(text)
    assert int(row["uniq_len"]) == size
    assert int(row["uniq_pos"]) == (int(row["prop_pos"]) + start if size else 0)


def test_flags_are_those_of_the_properties() -> None:
    flags = {
        b"WAIT\x01false\x02": layout.PROP_WAIT_FALSE,
        b"WAIT\x01true\x02": 0,
        b"TRAN_MSG\x01TRUE\x02": layout.PROP_TRAN_MSG,
        b"TIMER_OUT_MS\x011\x02": layout.PROP_TIMER_OUT,
        b"TIMER_DEL_UNIQKEY\x01u\x02": layout.PROP_TIMER_DEL,
        b"REAL_QID\x011\x02": layout.PROP_REAL_TOPIC,
        b"INNER_NUM\x011\x02": layout.PROP_INNER_BATCH,
        b"__SHARDINGKEY\x01k\x02": layout.PROP_SHARDED,
        b"TIMER_ROLL_TIMES\x011\x02": layout.PROP_TIMER_STALE,
        b"DUEMQ_SCHEDULE\x01s\x02": layout.PROP_SCHEDULE,
        b"A\x01a\x02DUEMQ_SCHEDULE_CRON\x01* * * * *\x02": layout.PROP_SCHEDULE,
        b"A\x01DUEMQ_SCHEDULE\x02": 0,
        b"TAGS\x01t\x02UNIQ_KEY\x01u\x02": 0,
    }
    batch = PutBatch(len(flags))
    found = {text: int(batch.rows[add(batch, text)]["prop_flags"]) for text in flags}
    assert found == flags
