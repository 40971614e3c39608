"""Damaged files other than the log: a finding with file and position, and the rest is read."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from message_store import layout
from spark_reconciliation.scan.files import Entry, Root
from spark_reconciliation.scan.planning import row_of_files
from spark_reconciliation.scan.roles import Role
from spark_reconciliation.scan.tables import TABLES
from tests.support.extended import extended
from tests.support.golden_stores import STORES, GoldenStore, golden_store
from tests.support.plain_store import FileRow
from tests.support.read_tables import read_rows
from tests.support.sparse_files import copy_used
from tests.support.timer_rig import TimerRig
from tests.support.written_logs import LogWriter
from timer_store.layout import UNIT_BYTES, WHEEL_BYTES

CLEAN_5 = "apache-5.3.3-clean"
LOG = "timerlog/00000000000000000000"
CHECK = "config/timercheck"
FOREIGN = bytes(range(1, 256)) * 4
Damage = Callable[[Path], object]


def places(path: object) -> set[tuple[str, int, str]]:
    return {(row["file"], row["offset"], row["kind"]) for row in read_rows(path, "findings")}


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store of Apache's with content in every kind of file."""
    root = tmp_path_factory.mktemp("intact") / "store"
    shutil.copytree(golden_store(CLEAN_5), root, copy_function=copy_used)
    return root


@pytest.fixture
def store(intact: Path, tmp_path: Path) -> Path:
    """Return a copy to be damaged."""
    return Path(shutil.copytree(intact, tmp_path / "store", copy_function=copy_used))


@pytest.mark.parametrize("store", STORES, ids=str)
def test_intact_stores_have_no_findings(store: GoldenStore) -> None:
    assert places(golden_store(store.name)) == set()


def test_our_stores_have_no_findings(tmp_path: Path) -> None:
    rig = TimerRig(tmp_path).open()
    for n in range(300):
        rig.put(rig.clock.now_ms() + 500 * n, KEYS=f"key-{n}")
    rig.advance(60_000)
    rig.persist()
    rig.put(rig.clock.now_ms() + 5_000)  # behind the checkpoint
    rig.kill()
    assert len(list((tmp_path / "timerlog").iterdir())) > 3
    assert places(tmp_path) == set()


def test_files_left_by_a_kill_are_no_damage(tmp_path: Path) -> None:
    """A wheel cleared to be rebuilt, and files that were being created."""
    rig = TimerRig(tmp_path).open()
    rig.put(rig.clock.now_ms() + 500)
    rig.advance(2_000)
    rig.put(rig.clock.now_ms() + 60_000)  # behind the checkpoint, so it may be missing in the wheel
    rig.kill()
    np.memmap(tmp_path / "timerwheel", np.uint8, "w+", shape=(WHEEL_BYTES,))
    for below in ("commitlog", "timerlog", "consumequeue/T/0"):
        last = max((tmp_path / below).iterdir())
        (last.with_name(f"{int(last.name) + last.stat().st_size:020d}")).touch()
    assert places(tmp_path) == set()
    (tmp_path / "timerwheel").write_bytes(b"")
    assert places(tmp_path) == set()


@pytest.mark.parametrize(("waiting", "expected"), [(0, set()), (1, {("timerlog", 0, "gap")})])
def test_a_timer_log_without_files_is_no_damage_if_nothing_is_pending(
    tmp_path: Path, waiting: int, expected: set[Any]
) -> None:
    """A rebuilt log begins at the end of the earlier one, without a file until a timer is put."""
    rig = TimerRig(tmp_path).open()
    rig.put(rig.clock.now_ms() + 500)
    rig.advance(2_000)
    for n in range(waiting):
        rig.put(rig.clock.now_ms() + 60_000 + n)
    rig.persist()
    rig.kill()
    for path in (tmp_path / "timerlog").iterdir():
        path.unlink()
    assert places(tmp_path) == expected


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ((0, 9, 9), 1),
        ((9, 0, 9), 2),
        ((9, 9, 0), 0),
        ((0,), 1),
        ((9, 9), 0),
    ],
)
def test_only_the_last_file_may_be_empty(sizes: tuple[int, ...], expected: int) -> None:
    """Earlier empty files are a loss, not retention."""
    entries = [Entry(f"commitlog/{9 * n:020d}", size) for n, size in enumerate(sizes)]
    kept, findings = row_of_files("s", entries)
    assert [entry.size for entry in kept] == [size for size in sizes if size]
    assert len(findings) == expected


def edit(path: str, at: int, data: bytes) -> Damage:
    def do(root: Path) -> None:
        with (root / path).open("r+b") as file:
            file.seek(at)
            file.write(data)

    return do


def cut(path: str, size: int) -> Damage:
    return lambda root: os.truncate(root / path, size)


def zero(path: str) -> Damage:
    return lambda root: (root / path).write_bytes(bytes((root / path).stat().st_size))


def torn(name: str) -> Damage:
    def do(root: Path) -> None:
        for path in (root / "config").glob(f"{name}*"):
            path.write_bytes(path.read_bytes()[:-9])

    return do


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("damage", "place"),
    [
        (edit(LOG, 3 * UNIT_BYTES, bytes(UNIT_BYTES)), (LOG, 3 * UNIT_BYTES, "gap")),
        extended(edit(LOG, 5 * UNIT_BYTES, FOREIGN[:60]), (LOG, 5 * UNIT_BYTES, "gap")),
        (cut(LOG, 10 * UNIT_BYTES + 7), (LOG, 10 * UNIT_BYTES + 7, "gap")),
        extended(zero(LOG), (LOG, 0, "gap")),
        (lambda root: shutil.rmtree(root / "timerlog"), ("timerlog", 0, "gap")),
        (
            lambda root: (root / LOG).with_name("notes").write_text("?"),
            ("timerlog/notes", 0, "stray-file"),
        ),
        (edit("timerwheel", 640, FOREIGN[:64]), ("timerwheel", 640, "gap")),
        extended(cut("timerwheel", 6_400), ("timerwheel", 6_400, "gap")),
        (cut("timerwheel", 6_411), ("timerwheel", 6_411, "gap")),
        extended(
            lambda root: np.memmap(root / "timerwheel", np.uint8, "w+", shape=(WHEEL_BYTES,)),
            ("timerwheel", 0, "gap"),
        ),
        extended(cut("timerwheel", 0), ("timerwheel", 0, "gap")),
        (lambda root: (root / "timerwheel").unlink(), ("timerwheel", 0, "gap")),
        (zero(CHECK), (CHECK, 0, "unreadable")),
        extended(cut(CHECK, 20), (CHECK, 0, "unreadable")),
        extended(cut(CHECK, 0), (CHECK, 0, "unreadable")),
        extended(edit(CHECK, 0, b"foreign bytes" * 5), (CHECK, 0, "unreadable")),
        (torn("delayOffset.json"), ("config/delayOffset.json", 0, "unreadable")),
        extended(torn("consumerOffset.json"), ("config/consumerOffset.json", 0, "unreadable")),
    ],
)
def test_damage_is_reported_with_its_position(
    store: Path, damage: Damage, place: tuple[str, int, str]
) -> None:
    offsets = [row["phys_offset"] for row in read_rows(store, "messages", "phys_offset")]
    damage(store)
    assert places(store) == {place}
    for table in TABLES:
        read_rows(store, table)
    assert [row["phys_offset"] for row in read_rows(store, "messages", "phys_offset")] == offsets
    (gap,) = read_rows(store, "messages", "file", "file_offset", "damage", roles=str(Role.GAP))
    assert (gap["file"], gap["file_offset"], gap["damage"]) == place


@pytest.mark.parametrize("broker", ["apache", "duemq"])
def test_the_first_file_of_the_timer_log_is_missing(store: Path, broker: str) -> None:
    """DueMQ removes it when all its timers are settled, Apache only together with their records."""
    row = FileRow(store / "timerlog")
    row.split(10 * UNIT_BYTES)
    first, second = row.files()[:2]
    first.unlink()
    if broker == "duemq":
        (store / "config" / "duemq.mark").write_bytes(b"?")
    place = (f"timerlog/{second.name}", 0, "gap")
    assert (place in places(store)) == (broker == "apache")


READ = ["timerwheel", LOG, CHECK, "config/delayOffset.json", "config/consumerOffset.json"]


@pytest.mark.sampled
@pytest.mark.parametrize("name", READ)
def test_a_file_without_permission(
    intact: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    read_file = Root.read

    def refuse(self: Root, path: str, start: int, end: int) -> Any:
        if path.startswith(name):
            raise PermissionError(13, "Permission denied", path)
        return read_file(self, path, start, end)

    monkeypatch.setattr(Root, "read", refuse)
    findings = read_rows(intact, "findings")
    assert {row["kind"] for row in findings} == {"unreadable"}
    assert all(row["file"].startswith(name) and "denied" in row["text"] for row in findings)
    for table in TABLES:
        read_rows(intact, table)


FOLDERS = ["timerlog", "config", "consumequeue/SCHEDULE_TOPIC_XXXX"]


@pytest.mark.sampled
@pytest.mark.parametrize("name", FOLDERS)
def test_a_directory_without_permission(
    intact: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    list_files = Root.files

    def refuse(self: Root, below: str) -> Any:
        if below.startswith(name):
            raise PermissionError(13, "Permission denied", below)
        return list_files(self, below)

    monkeypatch.setattr(Root, "files", refuse)
    findings = read_rows(intact, "findings")
    assert findings
    assert all(row["file"].startswith(name) and "denied" in row["text"] for row in findings)
    for table in TABLES:
        read_rows(intact, table)


def test_a_torn_file_is_read_from_its_backup(store: Path) -> None:
    path = store / "config/delayOffset.json"
    before = read_rows(store, "cursors")
    path.with_name(path.name + ".bak").write_bytes(path.read_bytes())
    path.write_bytes(path.read_bytes()[:11])
    assert read_rows(store, "cursors") == before
    assert places(store) == set()


@pytest.mark.parametrize("table", TABLES)
def test_illegal_file_names_are_shown_as_bytes(table: str, tmp_path: Path) -> None:
    log = LogWriter(tmp_path)
    for _ in range(3):
        log.add(b"x" * 20, topic="Xopic")
    at = log.data.index(b"Xopic")
    log.data[at : at + 1] = b"\xff"
    log.write()
    unit = layout.packer(layout.CQ_UNIT).pack(0, log.places[0][1], 7)
    for name, data in (
        (b"consumequeue/T\xff/0/" + b"0" * 20, unit),
        (b"commitlog/\xffone", b"1"),
        (b"index/\xffone", b"1"),
        (b"config/\xffone", b"1"),
    ):
        path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    rows = read_rows(tmp_path, table)
    if table == "messages":
        assert [row["topic"] for row in rows if row["role"] == Role.NONE] == [
            "�opic",
            "Xopic",
            "Xopic",
        ]
    if table == "consume_queue":
        assert [(row["topic"], row["tags_code"]) for row in rows] == [("T\\xff", 7)]
    if table == "findings":
        assert {row["file"] for row in rows} == {"commitlog/\\xffone"}


@pytest.mark.sampled
@pytest.mark.parametrize("damage", ["zeros", "no-byte", "no-file"])
def test_a_log_without_its_end(tmp_path: Path, damage: str) -> None:
    rig = TimerRig(tmp_path).open()
    now_ms = rig.clock.now_ms()
    for number in range(300):
        rig.put(now_ms + 100_000, body=b"%d" % number + b"x" * 1_000)
    rig.close()
    assert places(tmp_path) == set()
    files = sorted((tmp_path / "commitlog").iterdir())
    assert len(files) > 1
    end = int(read_rows(tmp_path, "stores")[0]["log_end"])
    cut_at = int(files[-1].name)
    if damage == "zeros":
        files[-1].write_bytes(bytes(files[-1].stat().st_size))
    elif damage == "no-byte":
        files[-1].write_bytes(b"")
    else:
        files[-1].unlink()
    [found] = [
        row for row in read_rows(tmp_path, "findings") if row["file"].startswith("commitlog")
    ]
    assert (found["kind"], found["size"]) == ("cut", end - cut_at)
    assert int(found["file"].rpartition("/")[2]) + found["offset"] == cut_at
