"""Faults of whole files and of the clock, each planted in a store of its own."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from tests.support.plain_store import CQ, SCHEDULE, TIMER, TIMERS, FileRow, PlainStore, Scene

HOUR_MS: Final = 3_600_000
EARLY_MS, LATER_MS = 4_000, 3_000
BAND: Final = 20  # records with a time an hour ahead: more than a clock step needs
TIMER_FILES: Final = (
    "timerlog",
    "timerwheel",
    "config/timercheck",
    "config/timermetrics",
    "config/duemq.timers.json",
)
StoreFault = Callable[[Scene, Path], None]
"""Changes a store; the second argument is another store of the same kind of broker."""


def remove(*names: str) -> StoreFault:
    def do(scene: Scene, other: Path) -> None:
        for name in names:
            for path in (scene.store.root / name, scene.store.root / f"{name}.bak"):
                if path.is_dir():
                    shutil.rmtree(path)
                path.unlink(missing_ok=True)

    return do


def mix(*names: str) -> StoreFault:
    """Replace files by those of the other store."""

    def do(scene: Scene, other: Path) -> None:
        remove(*names)(scene, other)
        for name in names:
            if (other / name).is_dir():
                shutil.copytree(other / name, scene.store.root / name)
            elif (other / name).exists():
                shutil.copy(other / name, scene.store.root / name)

    return do


def mix_log_file(index: int) -> StoreFault:
    """Replace a log file by the one with the same name of the other store."""

    def do(scene: Scene, other: Path) -> None:
        files, others = scene.store.log.files(), PlainStore(other).log.files()
        common = sorted({path.name for path in files} & {path.name for path in others})
        target = scene.store.root / "commitlog" / common[index]
        shutil.copy(other / "commitlog" / target.name, target)

    return do


def longest_queue(scene: Scene) -> tuple[str, int]:
    """Return the queue of the delivery with the highest queue offset."""
    sent = max((sent for _, sent in scene.sent), key=lambda sent: sent.number)
    return sent.topic, sent.queue


def queue_of_level(scene: Scene) -> tuple[str, int]:
    """Return the queue of the level with the most units."""
    queues = [key for key in scene.store.queues() if key[0] == SCHEDULE]
    return max(queues, key=lambda key: len(scene.store.units(*key)))


def remove_queue(choose: Callable[[Scene], tuple[str, int]]) -> StoreFault:
    def do(scene: Scene, other: Path) -> None:
        shutil.rmtree(scene.store.queue(*choose(scene)).folder)

    return do


def remove_first_file_of_a_queue(scene: Scene, other: Path) -> None:
    row = scene.store.queue(*longest_queue(scene))
    row.split(CQ.size)
    row.files()[0].unlink()


def remove_file_of_the_timer_log(index: int) -> StoreFault:
    def do(scene: Scene, other: Path) -> None:
        positions = [pos for pos, _ in scene.store.timer_units()]
        row = FileRow(scene.store.root / "timerlog")
        row.split(10 * TIMER.size)
        row.file_at(positions[index]).unlink()

    return do


def zero_newest_units(scene: Scene, other: Path) -> None:
    topic, queue = longest_queue(scene)
    end = len(scene.store.units(topic, queue))
    for number in (end - 2, end - 1):
        scene.store.queue(topic, queue).write(number * CQ.size, bytes(CQ.size))


def renumber(scene: Scene, other: Path) -> None:
    """Write a queue as a rebuild from its second half does, numbered from 0."""
    topic, queue = longest_queue(scene)
    units = list(scene.store.units(topic, queue).values())
    row = scene.store.queue(topic, queue)
    row.write(0, bytes(len(units) * CQ.size))
    row.write(0, b"".join(CQ.pack(*unit) for unit in units[len(units) // 2 :]))


def zero_the_wheel(scene: Scene, other: Path) -> None:
    with (scene.store.root / "timerwheel").open("r+b") as file:
        size = file.seek(0, 2)
        file.truncate(0)
        file.truncate(size)


def early_after_a_clock_step(scene: Scene, other: Path) -> None:
    """Store some records an hour ahead; after the clock was set back, deliver one early."""
    store = scene.store
    records = store.records()
    numbers = {record.log_offset: number for number, record in enumerate(records)}
    held, sent = max(
        scene.sent, key=lambda pair: numbers[pair[1].log_offset] - numbers[pair[0].log_offset]
    )
    first = numbers[held.log_offset] + 1
    assert numbers[sent.log_offset] >= first + BAND
    for record in records[first : first + BAND]:
        store.put(record.store_ms_at, ">q", record.store_ms + HOUR_MS)
    store.put(sent.store_ms_at, ">q", sent.store_ms - EARLY_MS)


def later_times_of_a_level(scene: Scene, other: Path) -> None:
    """Let all units of a level have a later due time than its deliveries."""
    for number, (phys_offset, size, due_ms) in scene.store.units(SCHEDULE, 0).items():
        scene.store.put_unit(SCHEDULE, 0, number, (phys_offset, size, due_ms + LATER_MS))


STORE_FAULTS: Final[Mapping[str, StoreFault]] = {
    "newest units of a queue zeroed": zero_newest_units,
    "queue rebuilt from its second half, numbered from 0": renumber,
    "first file of a queue removed": remove_first_file_of_a_queue,
    "queue of a topic removed": remove_queue(longest_queue),
    "all queues removed": remove("consumequeue"),
    "queue of a level removed": remove_queue(queue_of_level),
    "queue of the timers removed": remove(f"consumequeue/{TIMERS}"),
    "timer log removed": remove("timerlog"),
    "first file of the timer log removed": remove_file_of_the_timer_log(0),
    "last file of the timer log removed": remove_file_of_the_timer_log(-1),
    "wheel removed": remove("timerwheel"),
    "wheel zeroed": zero_the_wheel,
    "`timercheck` removed": remove("config/timercheck"),
    "all files of the timers removed": remove(*TIMER_FILES),
    "`config` removed": remove("config"),
    "first log file of another store": mix_log_file(0),
    "last log file of another store": mix_log_file(-1),
    "queues of another store": mix("consumequeue"),
    "`config` of another store": mix("config"),
    "files of the timers of another store": mix(*TIMER_FILES),
    "delivered early after the clock was set back": early_after_a_clock_step,
    "units of a level with a later due time": later_times_of_a_level,
}
