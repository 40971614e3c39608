"""Table of topics and queues: it grows, and neither slots nor offsets change."""

from __future__ import annotations

import numpy as np

from message_store.queues.topic_table import QUEUES_MAX, TopicTable

TOPICS, QUEUES = 300, 9  # more than the first arrays have room for


def test_slots_and_offsets_stay_when_the_table_grows() -> None:
    table = TopicTable()
    slots: dict[tuple[int, int], int] = {}
    for queue_id in range(QUEUES):
        for number in range(TOPICS):
            topic = table.add(f"topic-{number}")
            slot = table.slot(topic, queue_id, create=True)
            slots[topic, queue_id] = slot
            table.set_next_offset(slot, 1_000 * topic + queue_id)
    assert table.queue_count == TOPICS * QUEUES
    arrays = table.arrays
    for (topic, queue_id), slot in slots.items():
        assert table.slot(topic, queue_id) == slot
        assert table.queue_of(slot) == (topic, queue_id)
        assert table.next_offset(slot) == 1_000 * topic + queue_id
        # as a kernel finds it
        assert arrays.slot_map[arrays.topics[topic]["slots_pos"] + queue_id] == slot
        assert arrays.queues[slot]["next_offset"] == 1_000 * topic + queue_id
    assert np.unique(list(slots.values())).size == len(slots)


def test_a_topic_with_many_queues_needs_memory_for_its_queues_only() -> None:
    """A start adds them in the order of the directories' names, most of them as the last one."""
    table, queues = TopicTable(), 5_000
    topic = table.add("T")
    for queue_id in sorted(range(queues), key=str):
        slot = table.slot(topic, queue_id, create=True)
        table.set_next_offset(slot, queue_id)
    assert table.arrays.slot_map.size <= 8 * queues
    assert all(table.next_offset(table.slot(topic, n)) == n for n in range(queues))
    assert table.slot(topic, queues) == -1


def test_the_last_queue_of_a_topic_has_a_slot() -> None:
    table = TopicTable()
    topic = table.add("T")
    for queue_id in (QUEUES_MAX // 2, QUEUES_MAX - 1):
        assert table.queue_of(table.slot(topic, queue_id, create=True)) == (topic, queue_id)


def test_routes_exist_while_a_topic_has_queues_for_writes() -> None:
    table = TopicTable()
    table.add("stored")
    changes = [("A", 0), ("A", 4), ("B", 1), ("A", 8), ("A", 0), ("B", 0), ("B", 0), ("stored", 2)]
    queues: dict[str, int] = {}
    for name, count in changes:
        table.set_routing(name, write_queues=count, read_queues=4, perm=6)
        queues[name] = count
        assert table.has_routes == any(queues.values())
