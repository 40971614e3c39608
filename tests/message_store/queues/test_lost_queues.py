"""Consume queues with unreadable sectors, which are rebuilt from the log."""

from __future__ import annotations

from pathlib import Path

import pytest

from duemq_common.errors import CorruptStore
from message_store.queues.lost_queues import LostQueues
from tests.support.bad_disk import BadDisk
from tests.support.stores import crash, open_store, put_one

MESSAGES = 120  # 50 units per file


def filled(root: Path) -> list[int]:
    with open_store(root) as store:
        rows = [put_one(store, "T", 3, b"%d" % number) for number in range(MESSAGES)]
        put_one(store, "U")
    return [int(row["phys_offset"]) for row in rows]


def file_of(root: Path, number: int) -> Path:
    return root / "consumequeue" / "T" / "3" / f"{number * 1_000:020d}"


@pytest.mark.finding("E4")
@pytest.mark.parametrize("mark", [True, False])
@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_start_rebuilds_an_unreadable_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mark: bool, number: int
) -> None:
    offsets = filled(tmp_path)
    if not mark:
        (tmp_path / "config" / "duemq.mark").unlink()
    BadDisk(monkeypatch).break_page(file_of(tmp_path, number), 0)
    with open_store(tmp_path) as store:
        if number != 1:  # a start does not read the second file
            assert offsets == [
                int(store.units("T", 3, at, 1)["phys_offset"][0]) for at in range(MESSAGES)
            ]
        assert store.queue_bounds("T", 3) == (0, MESSAGES)
        assert store.queue_bounds("U", 0) == (0, 1)
        assert put_one(store, "T", 3)["queue_offset"] == MESSAGES
        assert not (tmp_path / "config" / "unreadableQueues").exists()


@pytest.mark.finding("E4")
@pytest.mark.parametrize("killed", [True, False])
def test_a_queue_that_becomes_unreadable_is_rebuilt_by_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: bool
) -> None:
    offsets = filled(tmp_path)
    store = open_store(tmp_path)
    store.__enter__()
    BadDisk(monkeypatch).break_page(file_of(tmp_path, 0), 0)
    assert store.units("T", 3, 60, 1)["phys_offset"][0] == offsets[60]
    for _ in range(2):
        with pytest.raises(CorruptStore, match=r"Input/output error. Start the broker again"):
            store.units("T", 3, 0, 1)
    assert (tmp_path / "config" / "unreadableQueues").read_text() == "T/3\n"
    if killed:
        crash(store)
    else:
        store.__exit__(None, None, None)
    with open_store(tmp_path) as again:
        found = [int(again.units("T", 3, at, 1)["phys_offset"][0]) for at in range(MESSAGES)]
        assert found == offsets


def test_a_failed_write_of_the_list_stops_nothing(tmp_path: Path) -> None:
    lost = LostQueues(tmp_path / "missing" / "note")
    lost.add("/store/consumequeue/T/3/00000000000000000000")
    assert lost.names == {"T/3"}
    lost.load()
    lost.clear()
    assert not lost.names
