"""Search of many keys together, compared with searches of one key."""

from __future__ import annotations

import asyncio
import errno
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from duemq_common.errors import StoreError
from message_store.index import key_search
from message_store.index.index_service import IndexService
from message_store.index.key_search import (
    HIT_UNIQUE,
    are_owned,
    frames,
    owners,
    query_of,
    search,
    search_later,
    search_now,
)
from message_store.log.batch import PutBatch
from tests.support.indexed_files import forbid_visits
from tests.support.stores import add_message, open_store, put_one

WORDS = ("a", "b", "Aa", "BB", "é", "C#", "long-" * 20)  # Aa and BB have the same hash
MESSAGES = st.lists(
    st.tuples(
        st.sampled_from(("T", "U")),
        st.lists(st.sampled_from(WORDS), max_size=3, unique=True),
        st.sampled_from(("", *WORDS)),
    ),
    max_size=150,
)


WAYS = ["on the loop", "in a thread", "many files", "long chains", "without an index"]


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run a search in each of its modes."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "in a thread":
            patch.setattr(key_search, "LOOP_BYTES_MAX", 0)
        if request.param == "many files":
            patch.setattr(key_search, "LOOP_PROBES_MAX", -1)
        if request.param == "long chains":
            patch.setattr(key_search, "FEW", 1)
            patch.setattr(key_search, "ITEMS_PIECE", 7)
        if request.param in ("in a thread", "without an index"):
            patch.setattr(IndexService, "_index_piece", _no_room)
        yield request.param


def _no_room(index: IndexService) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.sampled
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(messages=MESSAGES, keys=st.lists(st.sampled_from((*WORDS, "absent", "")), max_size=9))
def test_results(way: str, messages: list[tuple[str, list[str], str]], keys: list[str]) -> None:
    with tempfile.TemporaryDirectory() as root, open_store(Path(root)) as store:
        batch = PutBatch(max(len(messages), 1))
        for topic, words, unique in messages:
            properties = {"KEYS": " ".join(words), "UNIQ_KEY": unique}
            add_message(store, batch, topic, properties={k: v for k, v in properties.items() if v})
        store.put(batch)
        found = asyncio.run(search(store, ["T"], keys))
        again = search_now(store, ["T"], keys)
        assert again.offsets.tolist() == found.offsets.tolist()
        expected = [
            (at, int(batch.rows[n]["phys_offset"]), unique == key)
            for at, key in enumerate(keys)
            for n, (topic, words, unique) in enumerate(messages)
            if topic == "T" and key and (key in words or key == unique)
        ]
        rows = zip(
            found.key_at.tolist(),
            found.offsets.tolist(),
            (found.hits == HIT_UNIQUE).tolist(),
            strict=True,
        )
        assert list(rows) == expected


def test_a_switched_off_index_is_an_error_with_the_reason(tmp_path: Path) -> None:
    with (
        open_store(tmp_path, index_enable=False) as store,
        pytest.raises(StoreError, match="messageIndexEnable"),
    ):
        search_now(store, ["T"], ["a"])


def test_frames_at_records_and_elsewhere(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        batch = PutBatch(2)
        for queue_id in (0, 1):
            add_message(store, batch, "T", queue_id)
        store.put(batch)
        second = int(batch.rows[1]["phys_offset"])
        found = frames(store, np.array([second, 3, -5, 1 << 40, 0]))
        assert found["queue_id"][[0, 4]].tolist() == [1, 0]
        assert (found["record_size"] > 0).tolist() == [True, False, False, False, True]
        assert found["topic_index"].tolist() == [store.topics.find("T"), -1, -1, -1, 0]


PROPERTIES = st.lists(
    st.dictionaries(
        st.sampled_from(("UNIQ_KEY", "REAL_TOPIC", "KEYS", "a")), st.sampled_from((*WORDS, "U"))
    ),
    max_size=9,
)
"""Properties of messages."""


@settings(max_examples=40, deadline=None)
@given(messages=PROPERTIES)
def test_owners_equal_the_properties_of_the_records(messages: list[dict[str, str]]) -> None:
    with tempfile.TemporaryDirectory() as root, open_store(Path(root)) as store:
        store.topics.add("U")
        batch = PutBatch(max(len(messages), 1))
        for properties in messages:
            add_message(store, batch, "T", properties=properties)
        store.put(batch)
        offsets = batch.filled["phys_offset"][::-1]
        topic_indexes, keys = owners(store, np.concatenate([offsets, [3, -5, 1 << 40]]))
        assert keys == [
            *(one.get("UNIQ_KEY", "").encode() for one in reversed(messages)),
            *[b""] * 3,
        ]
        assert topic_indexes.tolist() == [
            *(store.topics.find(one.get("REAL_TOPIC", "T")) for one in reversed(messages)),
            *[-1] * 3,
        ]


@settings(max_examples=40, deadline=None)
@given(
    messages=PROPERTIES,
    data=st.data(),
)
def test_owned_records_have_their_key_and_the_topic(
    messages: list[dict[str, str]], data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as root, open_store(Path(root)) as store:
        batch = PutBatch(max(len(messages), 1))
        for properties in messages:
            add_message(store, batch, "T", properties=properties)
        store.put(batch)
        end = int(store.max_offset)
        at = dict(zip(batch.filled["phys_offset"].tolist(), messages, strict=True))
        places = st.sampled_from([*at, 3, -5, end, 1 << 40])
        others = st.sampled_from((None, b"", *(word.encode() for word in WORDS)))
        drawn = data.draw(st.lists(st.tuples(places, others), max_size=12))
        hits = [
            (offset, at.get(offset, {}).get("UNIQ_KEY", "").encode() if key is None else key)
            for offset, key in drawn
        ]
        topic = data.draw(st.sampled_from(("", "T", "U", "absent")))
        query = query_of(topic, [key for _, key in hits])
        first = data.draw(st.integers(0, min(len(hits), 2)))
        offsets = np.array([offset for offset, _ in hits[first:]], np.int64)
        assert are_owned(store, offsets, query, first).tolist() == [
            offset in at
            and at[offset].get("UNIQ_KEY", "").encode() == key
            and topic in ("", at[offset].get("REAL_TOPIC", "T"))
            for offset, key in hits[first:]
        ]


@pytest.mark.finding("E2")
def test_one_key_is_found_behind_an_index_without_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_store(tmp_path) as store:
        first = int(put_one(store, "T", properties={"KEYS": "a"})["phys_offset"])
        store.index.catch_up()
        monkeypatch.setattr(IndexService, "_index_piece", _no_room)
        second = int(put_one(store, "T", properties={"UNIQ_KEY": "a"})["phys_offset"])
        put_one(store, "U", properties={"UNIQ_KEY": "a"})
        assert store.query_keys("T", "a", 9, 0, store.clock.now_ms()) == [second, first]
        assert store.query_keys("T", "a", 1, 0, store.clock.now_ms()) == [second]


def test_lookups_that_may_wait_for_the_disk_are_done_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_search, "LOOP_PROBES_MAX", -1)
    both, read = threading.Barrier(2), key_search.FileLookup.read

    def read_with_another(lookup: key_search.FileLookup) -> None:
        both.wait(timeout=30)
        read(lookup)

    with open_store(tmp_path) as store:
        batch = PutBatch(2)
        for unique in ("a", "b"):
            add_message(store, batch, "T", properties={"UNIQ_KEY": unique})
        store.put(batch)
        monkeypatch.setattr(key_search.FileLookup, "read", read_with_another)
        matches = asyncio.run(search(store, ["T"], ["a", "b"]))
        assert matches.offsets.tolist() == batch.rows["phys_offset"].tolist()


def test_the_thread_of_a_cancelled_search_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_search, "LOOP_PROBES_MAX", -1)
    begun, goes_on, pieces = threading.Event(), threading.Event(), list[int]()

    def match(*arguments: object) -> None:
        pieces.append(len(arguments))
        begun.set()
        assert goes_on.wait(timeout=30)

    monkeypatch.setattr("message_store.kernels.keys.match_keys", match)

    async def main() -> None:
        task = asyncio.create_task(search(store, ["T"], ["a", "b", "c", "d"]))
        assert await asyncio.to_thread(begun.wait, 30)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        goes_on.set()

    with open_store(tmp_path) as store:
        put_one(store, "T", properties={"KEYS": "a b c d"})
        asyncio.run(main())  # its end waits for the thread
    assert len(pieces) == 1


def test_a_later_search_finds_what_was_appended_since(tmp_path: Path, way: str) -> None:
    with open_store(tmp_path) as store:
        put_one(store, "T", properties={"KEYS": "a"})
        before = asyncio.run(search(store, ["T"], ["b", "a"]))
        assert (before.key_at.tolist(), before.log_end) == ([1], store.max_offset)
        put_one(store, "U", properties={"KEYS": "a"})
        second = int(put_one(store, "T", properties={"KEYS": "c a"})["phys_offset"])
        third = int(put_one(store, "T", properties={"UNIQ_KEY": "b"})["phys_offset"])
        later = asyncio.run(search_later(store, ["T"], ["b", "a"], before.log_end))
        assert (later.key_at.tolist(), later.offsets.tolist()) == ([0, 1], [third, second])
        assert later.log_end == store.max_offset
        none = asyncio.run(search_later(store, ["T"], ["b", "a"], later.log_end))
        assert none.offsets.size == 0


def test_a_search_visits_only_files_of_its_records(tmp_path: Path) -> None:
    with open_store(tmp_path, commitlog_file_bytes=4_096) as store:
        puts = [put_one(store, "T", body=b"x" * 1_000, properties={"KEYS": "a"}) for _ in range(10)]
        with forbid_visits(store):
            matches = search_now(store, ["T"], ["a"])
            seen = frames(store, matches.offsets)
        assert matches.offsets.tolist() == [int(row["phys_offset"]) for row in puts]
        assert (seen["record_size"] > 0).all()
