"""The table of topic names compared with a dictionary."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from message_store.kernels.topics import find_topic, hash_name
from message_store.queues.topic_table import TopicTable, name_hash

names = st.text(
    alphabet=st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20
) | st.integers(0, 400).map(lambda n: f"topic-{n}")


def find(table: TopicTable, name: bytes) -> int:
    data = np.frombuffer(b"ab" + name + b"yz", np.uint8)
    return int(find_topic(data, 2, len(name), table.arrays))


@given(st.binary(max_size=40))
def test_hash_name(data: bytes) -> None:
    block = np.frombuffer(b"x" + data + b"y", np.uint8)
    assert int(hash_name(block, 1, len(data))) == name_hash(data)


@given(st.lists(names, max_size=400), st.lists(names, max_size=20))
def test_find_topic(known: list[str], requested: list[str]) -> None:
    table = TopicTable()
    index = {name: table.add(name) for name in known}
    for name in known + requested:
        assert find(table, name.encode()) == index.get(name, -1)
        assert table.find(name) == index.get(name, -1)


def test_a_prefix_or_a_longer_name_is_not_the_topic() -> None:
    table = TopicTable()
    table.add("Topic")
    assert [find(table, name) for name in (b"Topi", b"Topics", b"topic", b"")] == [-1] * 4


def test_thousands_of_topics_are_distinguished() -> None:
    table = TopicTable()
    expected = {f"%RETRY%group-{n}": table.add(f"%RETRY%group-{n}") for n in range(5_000)}
    assert all(find(table, name.encode()) == index for name, index in expected.items())
    assert find(table, b"%RETRY%group-5000") == -1
