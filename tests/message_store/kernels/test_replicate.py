"""The numbers of a master's records, against a plain list."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from message_store import layout
from message_store.kernels.replicate import place
from message_store.queues.topic_table import TopicTable

KNOWN = ["A", "B"]
COLUMNS = ("phys_offset", "queue_offset", "tags_code", "record_size", "queue_slot", "sys_flag")
records = st.lists(
    st.tuples(
        st.sampled_from(["A", "B", "C", ""]),  # C is not in the table; empty: in no queue
        st.sampled_from([0, 0, 1, 7, -1]),
        st.sampled_from([0, 0, 0, 1, -1]),  # distance to the next queue offset
        st.sampled_from([0, 0, layout.SYS_COMMIT, layout.SYS_PREPARED, layout.SYS_ROLLBACK]),
    ),
    max_size=30,
)
Placed = list[tuple[int, ...] | None]


def naive_place(
    rows: list[dict[str, int]], first: int, slots: dict[tuple[int, int], int], ends: list[int]
) -> tuple[int, Placed]:
    """Return the index after the last placed record, and the columns of each; None: no unit."""
    placed: Placed = []
    for at, row in enumerate(rows[first:], first):
        if row["topic_index"] == layout.IN_NO_QUEUE or row["sys_flag"] & 4:
            placed.append(None)
            continue
        slot = slots.get((row["topic_index"], row["queue_id"]))
        if slot is None or ends[slot] != row["queue_offset"]:
            return at, placed
        ends[slot] += 1
        placed.append((*(row[name] for name in COLUMNS[:4]), slot, row["sys_flag"]))
    return len(rows), placed


def table() -> tuple[TopicTable, dict[tuple[int, int], int]]:
    topics = TopicTable()
    slots = {}
    for name in KNOWN:
        index = topics.add(name)
        for queue_id in (0, 1):
            slots[index, queue_id] = topics.slot(index, queue_id, create=True)
    return topics, slots


@given(records, st.integers(0, 5), st.lists(st.integers(0, 9), min_size=4, max_size=4))
def test_it_is_what_a_list_would_do(
    made: list[tuple[str, int, int, int]], first: int, ends: list[int]
) -> None:
    topics, slots = table()
    for slot, end in enumerate(ends):
        topics.set_next_offset(slot, end)
    first = min(first, len(made))
    data = np.frombuffer(b"ABC", np.uint8)
    rows = np.zeros(len(made), layout.SCANNED)
    following = list(ends)
    for at, (name, queue_id, distance, sys_flag) in enumerate(made):
        index = topics.find(name) if name else layout.IN_NO_QUEUE
        slot = slots.get((index, queue_id), 0)
        rows[at]["topic_index"], rows[at]["queue_id"] = index, queue_id
        rows[at]["topic_pos"] = "ABC".find(name) - at * 100
        rows[at]["topic_len"] = 1
        rows[at]["queue_offset"], rows[at]["sys_flag"] = following[slot] + distance, sys_flag
        rows[at]["phys_offset"], rows[at]["record_size"] = 1_000 + at * 100, 100
        rows[at]["tags_hash"] = at * 3
        following[slot] += at >= first and distance == 0 and not sys_flag & 4
    plain = [
        {name: int(row[name]) for name in rows.dtype.names} | {"tags_code": int(row["tags_hash"])}
        for row in rows
    ]
    wanted_end, wanted = naive_place(plain, first, slots, ends)
    out = np.zeros(len(made), layout.QUEUED)
    end = place(data, 1_000, rows, first, topics.arrays, out)
    assert end == wanted_end
    found = [
        tuple(int(row[name]) for name in COLUMNS) if row["status"] == 0 else None
        for row in out[first:end]
    ]
    assert found == wanted
    assert [topics.next_offset(slot) for slot in range(4)] == ends


def test_a_topic_that_became_known_is_found() -> None:
    topics, _ = table()
    data = np.frombuffer(b"--C", np.uint8)
    rows = np.zeros(1, layout.SCANNED)
    rows["topic_index"], rows["topic_pos"], rows["topic_len"] = -1, 2, 1
    out = np.zeros(1, layout.QUEUED)
    assert place(data, 0, rows, 0, topics.arrays, out) == 0
    index = topics.add("C")
    assert place(data, 0, rows, 0, topics.arrays, out) == 0
    assert rows["topic_index"][0] == index
    topics.slot(index, 0, create=True)
    assert place(data, 0, rows, 0, topics.arrays, out) == 1


def test_it_stops_at_a_damaged_body() -> None:
    topics, _ = table()
    rows, out = np.zeros(3, layout.SCANNED), np.zeros(3, layout.QUEUED)
    rows["queue_offset"] = np.arange(3)
    rows[1]["damage"] = layout.DAMAGE_BODY_CRC
    data = np.frombuffer(b"A", np.uint8)
    assert place(data, 0, rows, 0, topics.arrays, out) == 1
    rows[1]["damage"] = 0
    assert place(data, 0, rows, 1, topics.arrays, out) == 3
