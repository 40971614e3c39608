"""Damage inside the log: it is bridged, and old bytes behind the end are not delivered."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from duemq_common.clock import FakeClock
from message_store import layout
from message_store.log.gaps import BRIDGE_TOPIC
from message_store.log.record import decode_record
from message_store.queues.consume_queue import is_blank
from message_store.store import MessageStore
from message_store.verify import verify_store
from tests.message_store.test_store import bodies
from tests.support.encoded_records import encode_record
from tests.support.stores import crash, open_store, put_one, small_config

FILE_BYTES = 65_536


@contextmanager
def killed(root: Path, clock: FakeClock | None = None) -> Iterator[MessageStore]:
    """Yield an open store; kill it at the end, and remove its mark."""
    store = open_store(root, clock)
    store.__enter__()
    yield store
    crash(store)
    (root / "config" / "duemq.mark").unlink()


def killed_store(root: Path, count: int, size: int = 200) -> list[tuple[int, int]]:
    """Leave a killed store of one queue without a mark; return (offset, size) of each record."""
    with killed(root) as store:
        rows = [
            put_one(store, "T", 0, f"{number}/".encode().ljust(size, b"."))
            for number in range(count)
        ]
    return [(int(row["phys_offset"]), int(row["record_size"])) for row in rows]


def numbers(store: MessageStore) -> list[int]:
    return [int(body.split(b"/")[0]) for body in bodies(store, "T")]


def overwrite(root: Path, at: int, data: bytes) -> None:
    path = root / "commitlog" / f"{at // FILE_BYTES * FILE_BYTES:020d}"
    with path.open("r+b") as file:
        file.seek(at % FILE_BYTES)
        file.write(data)


def gap_store(
    tmp_path: Path, at: int, data: bytes, count: int = 10
) -> tuple[MessageStore, list[Any]]:
    places = killed_store(tmp_path, count)
    overwrite(tmp_path, places[4][0] + at, data)
    notices: list[str] = []
    return MessageStore(small_config(tmp_path), FakeClock(), notice=notices.append), notices


@pytest.mark.parametrize("queues", ["kept", "lost"])
@pytest.mark.parametrize(
    ("at", "data"),
    [
        (0, b"\xff"),
        (3, b"\x00"),
        (4, bytes(4)),
        (28, b"\x01"),
        (84, b"\x7f"),
        (0, bytes(100)),
        (10, bytes(500)),
        (-100, bytes(200)),
        (4, layout.MAGIC_V2.to_bytes(4, "big", signed=True)),
    ],
)
def test_records_after_the_damage_are_kept(
    tmp_path: Path, at: int, data: bytes, queues: str
) -> None:
    store, notices = gap_store(tmp_path, at, data)
    if queues == "lost":
        shutil.rmtree(tmp_path / "consumequeue")
    with store:
        (start,) = store.recovered.bridged
        walked = [int(offset) for rows in store.scan(0) for offset in rows["phys_offset"]]
        filler = store.read_record(start)
        assert (filler.topic, filler.sys_flag) == (BRIDGE_TOPIC[: len(filler.topic)], 12)
        lost = 10 - (len(walked) - 1)
        left = [n for n in range(10) if n < 4 - (at < 0) or n >= 4 - (at < 0) + lost]
        assert store.queue_bounds("T", 0) == (0, 10)
        for number in left:
            unit = store.units("T", 0, number, 1)[0]
            body = store.read_record(int(unit["phys_offset"])).body
            assert body.startswith(b"%d/" % number)
        blanks = [n for n in range(10) if is_blank(store.units("T", 0, n, 1))[0]]
        assert sorted(left + blanks) == list(range(10))
        assert put_one(store, "T", 0, b"10/")["queue_offset"] == 10
        assert any("the records after them were kept" in notice for notice in notices)
    assert len(list((tmp_path / "truncated").iterdir())) == 1
    with open_store(tmp_path) as again:
        assert again.recovered.bridged == []
        assert again.queue_bounds("T", 0) == (0, 11)


def test_damage_at_every_byte_of_a_header(tmp_path: Path) -> None:
    places = killed_store(tmp_path / "one", 6)
    start, size = places[3]
    for at in [*range(8), *range(28, 40), *range(84, 88)]:
        root = tmp_path / str(at)
        shutil.copytree(tmp_path / "one", root)
        path = root / "commitlog" / f"{0:020d}"
        overwrite(root, start + at, bytes([path.read_bytes()[start + at] ^ 0x55]))
        with open_store(root) as store:
            assert store.queue_bounds("T", 0) == (0, 6)
            for number in (0, 1, 2, 4, 5):
                record = store.read_record(places[number][0])
                assert record.body.startswith(b"%d/" % number)
        bridge = decode_record(memoryview(path.read_bytes())[start : start + size], start)
        assert bridge.phys_offset == start


def test_a_lost_blank_at_a_file_s_end_is_written_again(tmp_path: Path) -> None:
    places = killed_store(tmp_path, 300)
    at = max(p + s for p, s in places if p < FILE_BYTES)
    overwrite(tmp_path, at, bytes(8))
    with open_store(tmp_path) as store:
        assert store.recovered.bridged == [at]
        assert numbers(store) == list(range(300))


def test_two_gaps_over_a_file_s_end(tmp_path: Path) -> None:
    places = killed_store(tmp_path, 300)
    second = next(n for n, (p, _) in enumerate(places) if p >= FILE_BYTES)
    for number in (second - 1, second + 1):
        overwrite(tmp_path, places[number][0], b"\xff" * 8)
    with open_store(tmp_path) as store:
        assert store.recovered.bridged == [places[second - 1][0], places[second + 1][0]]
        assert store.queue_bounds("T", 0) == (0, 300)
        assert store.read_record(places[299][0]).body.startswith(b"299/")


@pytest.mark.parametrize("size", [1, 100, 4_096])
@pytest.mark.parametrize("marked", [True, False])
def test_damage_at_the_start_of_a_file_costs_the_records_there(
    tmp_path: Path, size: int, marked: bool
) -> None:
    """The blank record before it is no damage: the gap begins with the file."""
    places = killed_store(tmp_path, 500)
    if marked:
        with open_store(tmp_path) as store:  # writes a mark that is older than the damage
            crash_from = store.log.end
        assert crash_from > 2 * FILE_BYTES
        (tmp_path / "abort").touch()
        (tmp_path / "config" / "duemq.mark").unlink()
    overwrite(tmp_path, FILE_BYTES, b"\xa5" * size)
    with open_store(tmp_path) as store:
        lost = [n for n, (at, end) in enumerate(places) if FILE_BYTES <= at < FILE_BYTES + size]
        assert lost
        assert store.recovered.bridged == [FILE_BYTES]
        walked = [int(offset) for rows in store.scan(0) for offset in rows["phys_offset"]]
        kept = [at for n, (at, _) in enumerate(places) if n not in lost]
        assert [at for at in walked if at in set(kept)] == kept
    assert verify_store(tmp_path).ok


def cut_store(root: Path, clock: FakeClock, *, count: int, left: int) -> bytes:
    """Leave a killed store with `left` of its records; return the log that had all of them."""
    with killed(root, clock) as store:
        rows = [put_one(store, "T", 0, b"%d/" % n + b"." * 200) for n in range(count)]
        old = (root / "commitlog" / f"{0:020d}").read_bytes()
    cut = int(rows[left]["phys_offset"])
    overwrite(root, cut, bytes(FILE_BYTES - cut))
    return old


def test_old_records_behind_the_end_are_ignored(tmp_path: Path) -> None:
    """Apache cut the log without zeroing; old records are older than the last one."""
    clock = FakeClock()
    old = cut_store(tmp_path, clock, count=6, left=2)
    clock.advance(60_000)
    with killed(tmp_path, clock) as store:
        row = put_one(store, "T", 0, b"20/new" + b"." * 11)
    end = int(row["phys_offset"] + row["record_size"])
    overwrite(tmp_path, end, old[end:])
    with open_store(tmp_path, clock) as store:
        assert store.recovered.bridged == []
        assert numbers(store) == [0, 1, 20]
        assert store.max_offset == end


def test_old_records_with_a_used_queue_offset_are_ignored(tmp_path: Path) -> None:
    """The clock stood still, but the queue has another message at their offset."""
    clock = FakeClock()
    old = cut_store(tmp_path, clock, count=4, left=1)
    with killed(tmp_path, clock) as store:
        for number in (20, 21):
            row = put_one(store, "T", 0, b"%d/" % number + b"." * 40)
    end = int(row["phys_offset"] + row["record_size"])
    overwrite(tmp_path, end, old[end:])
    with open_store(tmp_path, clock) as store:
        assert store.recovered.bridged == []
        assert numbers(store) == [0, 20, 21]


def test_a_bridged_store_is_in_order(tmp_path: Path) -> None:
    store, _ = gap_store(tmp_path, 4, bytes(4))
    with store:
        pass
    report = verify_store(tmp_path)
    assert not [found for found in report.findings if found.file.startswith("commitlog")]
    assert report.figures["records"] == 10


def test_a_bridge_withdraws_the_checksums_of_its_blocks(tmp_path: Path) -> None:
    """The log was synced further than the queues, so a block after the mark has a checksum."""
    store = open_store(tmp_path)
    store.__enter__()
    rows = [put_one(store, "T", 0, b"%d/" % number + b"." * 200) for number in range(40)]
    store.flusher.flush()
    start, end = (int(rows[n]["phys_offset"]) for n in (2, 3))
    store.mark.update(durable=end, durable_record=start, durable_units=3)
    crash(store)
    damaged = int(rows[5]["phys_offset"])
    overwrite(tmp_path, damaged, b"\xff" * 8)
    with open_store(tmp_path) as store:
        assert store.recovered.bridged == [damaged]
    assert not verify_store(tmp_path).counts["log-block"]


# -- records within bodies ----------------------------------------------------------------------


def forged(phys_offset: int, topic: str = "DUEMQ_MIGRATION") -> bytes:
    """Return the bytes of a record of any topic, which a client could also compute."""
    return encode_record(
        topic=topic,
        queue_id=0,
        body=b"forged",
        property_text=b"A\x01B\x02",
        queue_offset=0,
        phys_offset=phys_offset,
        born_ms=1,
        born_host=(bytes(4), 0),
        store_ms=1 << 42,
        store_host=(bytes(4), 0),
    )


def store_with_forgery(root: Path, later: int) -> tuple[int, int]:
    """Leave a killed store with a record inside another one's body; return both offsets."""
    store = open_store(root)
    store.__enter__()
    for number in range(3):
        put_one(store, "T", 0, f"{number}/".encode())
    start = store.max_offset
    inner = start + 88 + 10
    put_one(store, "T", 0, b"." * 10 + forged(inner) + b"." * 10)
    assert forged(inner) in store.log.files[0].data.tobytes()
    for number in range(later):
        put_one(store, "T", 0, f"{4 + number}/".encode())
    crash(store)
    return start, inner


@pytest.mark.finding("P:gap-search")
@pytest.mark.parametrize("later", [0, 1, 3])
@pytest.mark.parametrize("unit", ["kept", "lost"])
def test_a_record_inside_a_body_is_never_delivered(tmp_path: Path, later: int, unit: str) -> None:
    """The header around it is lost, as after a power cut or with a bad sector."""
    start, inner = store_with_forgery(tmp_path, later)
    overwrite(tmp_path, start, bytes(80))
    if unit == "lost":  # then no queue knows the records from here on
        queue = tmp_path / "consumequeue" / "T" / "0" / f"{0:020d}"
        with queue.open("r+b") as file:
            file.seek(20 * 3)
            file.write(bytes(20))
    with open_store(tmp_path) as store:
        assert store.queue_bounds("DUEMQ_MIGRATION", 0) == (0, 0)
        walked = [int(at) for rows in store.scan(0) for at in rows["phys_offset"]]
        assert inner not in walked
        first, end = store.queue_bounds("T", 0)
        units = store.units("T", 0, first, end - first)
        kept = units["phys_offset"][~is_blank(units)]
        found = [store.read_record(int(at)).body[:2] for at in kept]
        if unit == "kept":
            assert found == [f"{n}/".encode() for n in [0, 1, 2, *range(4, 4 + later)]]


@pytest.mark.finding("P:gap-search")
def test_after_several_damaged_records_the_next_is_found_by_its_unit(
    tmp_path: Path,
) -> None:
    places = killed_store(tmp_path, 10)
    for number in (3, 4, 6):
        overwrite(tmp_path, places[number][0], b"\xff" * 8)
    with open_store(tmp_path) as store:
        assert store.recovered is not None
        assert store.recovered.bridged == [places[3][0], places[6][0]]
        assert store.queue_bounds("T", 0) == (0, 10)
