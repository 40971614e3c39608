"""Classes of faults, planted in stores of DueMQ and of Apache's broker, and what one audit reports.

    python -m tests.support.fault_classes      writes docs/reference/audit-faults.md

The stores are read and changed by `plain_store`, which shares no code with the audit.
"""

from __future__ import annotations

import struct
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from message_store.log.batch import PutBatch
from tests.support.golden_stores import golden_store
from tests.support.migration_rig import MigrationRig
from tests.support.plain_store import (
    BORN_AT,
    FLAG_AT,
    HEAD,
    QUEUE_AT,
    SCHEDULE,
    SYS_AT,
    TIMERS,
    V1,
    PlainStore,
    Record,
    Scene,
    copy_sparse,
)
from tests.support.store_faults import STORE_FAULTS
from tests.support.stores import add_message

PAGE: Final = Path(__file__).parents[2] / "docs" / "reference" / "audit-faults.md"
BROKERS: Final = ("DueMQ", "Apache 5.3.3")
APACHE: Final = "apache-5.3.3-clean"
OTHER: Final = "apache-5.5.1-rolled"
OFFSETS: Final = "delayOffset.json"
HUGE: Final = 10_000_000
EACH: Final = 16
LATE_MS: Final = 5_000
LOG_FILE_BYTES: Final = 20_480  # several files
ROLLBACK: Final = 12  # MessageSysFlag.TRANSACTION_ROLLBACK_TYPE
NOTHING: Final = "nothing"


def filler(record: Record) -> bytes:
    """Return a valid record of another message with the size and place of a record."""
    size = record.size - 91 - len("filler")
    body = b"x" * size
    head = HEAD.pack(
        record.size,
        V1,
        zlib.crc32(body) & 0x7FFF_FFFF,
        0,
        0,
        0,
        record.log_offset,
        0,
        record.born_ms,
    )
    tail = struct.pack(">iqi", 0, 0, size) + body + b"\x06filler" + struct.pack(">h", 0)
    return head + bytes(8) + struct.pack(">q", record.store_ms) + bytes(8) + tail


Fault = Callable[[Scene], int]
"""Changes a store; returns the log offset of the message's first record."""


def on_delivery(change: Callable[[PlainStore, Record], None]) -> Fault:
    def do(scene: Scene) -> int:
        held, sent = scene.take()
        change(scene.store, sent)
        return held.log_offset

    return do


def field_at(offset: int, form: str, change: Callable[[Record], int]) -> Fault:
    """Change a field of the head of a delivery."""
    return on_delivery(lambda store, sent: store.put(sent.log_offset + offset, form, change(sent)))


def on_unit(change: Callable[[int, int, int], tuple[int, int, int]]) -> Fault:
    """Change the unit of a delivery."""

    def do(scene: Scene) -> int:
        held, sent = scene.take()
        unit = change(*scene.unit(sent))
        scene.store.put_unit(sent.topic, sent.queue, sent.number, unit)
        return held.log_offset

    return do


def flip_with_crc(store: PlainStore, sent: Record) -> None:
    flip(store, sent)
    store.fix_crc(sent.log_offset)


def change_property(store: PlainStore, sent: Record) -> None:
    raw = store.log.read(sent.properties_at, sent.log_offset + sent.size - sent.properties_at)
    position = raw.index(b"KEYS\x01") + 5
    store.put(sent.properties_at + position, "B", raw[position] ^ 1)


def stored(by_ms: int) -> Fault:
    return on_delivery(lambda store, sent: store.put(sent.store_ms_at, ">q", sent.store_ms + by_ms))


def on_pending(topic: str, change: Callable[[PlainStore, Record], None]) -> Fault:
    def do(scene: Scene) -> int:
        record = scene.wait(topic)
        change(scene.store, record)
        return record.log_offset

    return do


def overwrite(store: PlainStore, record: Record) -> None:
    store.log.write(record.log_offset, filler(record))


def zero(store: PlainStore, record: Record) -> None:
    store.log.write(record.log_offset, bytes(record.size))


def flip(store: PlainStore, record: Record) -> None:
    store.put(record.body_at, "B", record.body[0] ^ 0x10)


def neighbour_of_pending(topic: str) -> Fault:
    def do(scene: Scene) -> int:
        record = scene.wait(topic)
        units = scene.store.units(topic, record.queue)
        scene.store.put_unit(topic, record.queue, record.number, units[record.number - 1])
        return record.log_offset

    return do


def second_unit(scene: Scene) -> int:
    held, sent = scene.take()
    number = len(scene.store.units(sent.topic, sent.queue))
    scene.store.put_unit(sent.topic, sent.queue, number, scene.unit(sent))
    return held.log_offset


def foreign_unit(scene: Scene) -> int:
    held, sent = scene.take()
    topic, queue = next(key for key in scene.queued if key[0] != sent.topic)
    number = len(scene.store.units(topic, queue))
    scene.store.put_unit(topic, queue, number, scene.unit(sent))
    return held.log_offset


def duplicate(scene: Scene) -> int:
    held, sent = scene.take()
    raw = scene.store.log.read(sent.log_offset, sent.size)
    scene.store.append(raw, sent.queue, scene.store.records()[-1].store_ms + 1)
    return held.log_offset


FAULTS: Final[Mapping[str, Fault]] = {
    "delivery twice": duplicate,  # appended, so before faults that end a walk over the log
    "delivery overwritten with zeros": on_delivery(zero),
    "delivery overwritten with another valid record": on_delivery(overwrite),
    "delivery without the name of its source": on_delivery(
        lambda store, sent: store.put(sent.prepared_at, ">q", 0)
    ),
    "pending level message overwritten with another valid record": on_pending(SCHEDULE, overwrite),
    "pending timer overwritten with another valid record": on_pending(TIMERS, overwrite),
    "pending level message overwritten with zeros": on_pending(SCHEDULE, zero),
    "pending timer overwritten with zeros": on_pending(TIMERS, zero),
    "body of a pending level message changed": on_pending(SCHEDULE, flip),
    "body of a pending timer changed": on_pending(TIMERS, flip),
    "delivery in another queue": field_at(QUEUE_AT, ">i", lambda sent: (sent.queue + 1) % 4),
    "body changed, CRC correct": on_delivery(flip_with_crc),
    "body changed, CRC stale": on_delivery(flip),
    "property changed": on_delivery(change_property),
    "flag changed": field_at(FLAG_AT, ">i", lambda sent: sent.flag ^ 1),
    "system flag changed": field_at(SYS_AT, ">i", lambda sent: sent.sys_flag ^ 1),
    "transaction type of a rollback": field_at(SYS_AT, ">i", lambda sent: sent.sys_flag | ROLLBACK),
    "birth time changed": field_at(BORN_AT, ">q", lambda sent: sent.born_ms - 1_000),
    "producer's address changed": field_at(HEAD.size, "B", lambda sent: sent.host[0] ^ 1),
    "number of reconsumptions changed": on_delivery(
        lambda store, sent: store.put(sent.reconsumed_at, ">i", sent.reconsumed + 1)
    ),
    "stored before its due time": stored(-LATE_MS),
    "stored too late": stored(LATE_MS),
    "unit with another size": on_unit(lambda offset, size, code: (offset, size - 1, code)),
    "unit with another tags code": on_unit(lambda offset, size, code: (offset, size, code + 1)),
    "unit at another log offset": on_unit(lambda offset, size, code: (offset + 7, size, code)),
    "second unit for one delivery": second_unit,
    "unit in the queue of another topic": foreign_unit,
    "unit of a pending level message names its neighbour": neighbour_of_pending(SCHEDULE),
    "unit of a pending timer names its neighbour": neighbour_of_pending(TIMERS),
}
"""Faults of one message each; all are planted in one store."""
CURSOR, BEYOND = (
    "cursor of a level moved past pending messages",
    "cursor after the end of its queue",
)
UNDETECTABLE: Final = {
    "body changed in the pending record and in its delivery, CRCs correct": (
        "both records agree; only the producer knows the body"
    ),
    "pending record, delivery and the units of both overwritten": (
        "nothing in the store shows that the message existed"
    ),
    "cursor of a level moved back, or removed": (
        "DueMQ derives it from the log; Apache delivers again, which is then `duplicated`"
    ),
    "topic deleted": "a request of an administrator; the messages are not lost",
}
DERIVED: Final = {
    "delivery without the name of its source": (
        "its content names the message, as that of Apache's deliveries, which have no such name"
    ),
    "first file of the timer log removed": (
        "DueMQ also removes files without a pending timer, and rebuilds the log when a slot "
        "names a missing unit"
    ),
    "`timercheck` removed": (
        "DueMQ writes it some time after its start, and derives it from the queue of the timers"
    ),
    "all files of the timers removed": "DueMQ derives them from the queue of the timers",
}
INTRODUCTION: Final = """\
# Faults that an audit reports

Each class of fault is planted in a store of DueMQ and in one of Apache's broker 5.3.3, by a program
that shares no code with the audit. One audit of these stores made this table: verdict and reason of
the message (`python -m tests.support.fault_classes`;
`tests/spark_reconciliation/test_fault_classes.py` compares it)."""
OF_STORES: Final = """
Faults of whole files and of the clock, each in a store of its own; all its findings. The other
store is of the same kind of broker: a longer one of DueMQ, one of Apache's broker 5.5.1.
"""
END: Final = """
Apache's broker 5.3.3 was started on copies of its golden store without a file; its 28 timers:

| removed | delivered once | twice | never |
|---|---|---|---|
| nothing | 28 | | |
| `timerwheel` | 28 | | |
| `timerlog` | 9 | | 19 |
| `config/timercheck` | | 28 | |
| all files of the timers | 19 | 9 | |
| `config/delayOffset.json` (57 level messages) | 43 | 14 | |

An audit of the stores without `config/timercheck` and without `config/delayOffset.json` reports all
second deliveries as `duplicated`.
Without `timerwheel`, Apache enters the units of the last files of its timer log again, and no older
ones: of 210 pending timers in a log of five files, 130 were never delivered.

Damage of whole files is in [damaged files](damaged-files.md). Classes that a store cannot show:
"""


@dataclass
class Planted:
    """Stores with faults.

    Attributes:
        roots: Path of the store and log offset of the message, by (broker, class).
        whole: Path of the store, by (broker, class), for faults of whole files and of the clock.
    """

    stores: list[str] = field(default_factory=list)
    roots: dict[tuple[str, str], tuple[str, int]] = field(default_factory=dict)
    whole: dict[tuple[str, str], str] = field(default_factory=dict)

    def add(self, broker: str, name: str, store: Path, root: int) -> None:
        self.roots[broker, name] = (str(store), root)
        if str(store) not in self.stores:
            self.stores.append(str(store))


def plant_all(home: Path, whole: Iterable[str] = STORE_FAULTS) -> Planted:
    """Plant every class in stores of both brokers below `home`.

    Args:
        whole: Classes of `STORE_FAULTS`.
    """
    planted = Planted()
    made = made_store(home / "made"), made_store(home / "other", 2 * EACH)
    for broker, source, other in zip(
        BROKERS, (made[0], golden_store(APACHE)), (made[1], golden_store(OTHER)), strict=True
    ):
        folder = home / broker.partition(" ")[0]
        folder.mkdir()
        one = copy_sparse(source, folder / "records")
        scene = Scene.of_store(one)
        for name, fault in FAULTS.items():
            if broker == BROKERS[1] and "name of its source" in name:
                continue  # Apache's deliveries name none
            planted.add(broker, name, one, fault(scene))
        for name, by in ((CURSOR, 0), (BEYOND, HUGE)):
            store = copy_sparse(source, folder / str(by))
            planted.add(broker, name, store, move_cursor(Scene.of_store(store), by))
        for number, name in enumerate(whole):
            store = copy_sparse(source, folder / f"whole-{number}")
            STORE_FAULTS[name](Scene.of_store(store), other)
            planted.whole[broker, name] = str(store)
            planted.stores.append(str(store))
    return planted


def move_cursor(scene: Scene, by: int) -> int:
    """Move the cursor of a level to the end of its queue, or after it; return a passed message."""
    record = scene.waiting[SCHEDULE][-1]
    saved = scene.store.json(OFFSETS)
    saved["offsetTable"][str(record.queue + 1)] = (
        len(scene.store.units(SCHEDULE, record.queue)) + by
    )
    scene.store.write_json(OFFSETS, saved)
    return record.log_offset


def made_store(root: Path, count: int = EACH) -> Path:
    """Make a store of DueMQ with delivered and pending messages of levels and timers."""
    rig = MigrationRig(root, levels="1s 1h")
    rig.store_changes = {"commitlog_file_bytes": LOG_FILE_BYTES}
    rig.open()
    for topic in ("T", "U"):
        for n in range(count):
            now_ms = rig.clock.now_ms()
            own = {"TAGS": f"tag{n}", "KEYS": f"key{n}", "color": "red"}
            for name, delay in (
                ("near", {"DELAY": "1"}),
                ("far", {"DELAY": "2"}),
                ("soon", {"TIMER_DELIVER_MS": str(now_ms + 2_000)}),
                ("later", {"TIMER_DELIVER_MS": str(now_ms + 3_600_000 + n * 1_000)}),
            ):
                batch = PutBatch(1)
                properties = own | delay | {"UNIQ_KEY": f"{topic}-{n}-{name}"}
                add_message(rig.store, batch, topic, n % 4, b"body" * 9, properties=properties)
                rig.put(batch)
        rig.work()
        rig.advance(5_000)
    rig.close()
    return root


def reported(spark: Any, planted: Planted) -> dict[tuple[str, str], str]:
    """Return what one audit of all stores reports about each planted fault."""
    from spark_reconciliation.audit.rules import CLEAN
    from spark_reconciliation.spark.read import audit_stores

    verdicts, unread = audit_stores(spark, planted.stores, ids=False)
    rows = {(row["store"], row["root"]): row for row in verdicts.collect()}
    kinds = {(row["store"], row["damage"]) for row in unread.collect()}
    texts_by_key = {}
    for key, root in planted.roots.items():
        row = rows.get(root)
        if row is None:
            text = "no row"
        else:
            text = NOTHING if row["verdict"] in CLEAN else f"`{row['verdict']}`: {row['why']}"
        if key[1] == BEYOND and (root[0], "impossible") in kinds:
            text += "; `impossible`: the file"
        texts_by_key[key] = text
    for key, store in planted.whole.items():
        bad = {(r["verdict"], r["why"]) for r in rows.values() if r["store"] == store}
        texts = [
            f"`{verdict}`: {reason}" for verdict, reason in sorted(bad) if verdict not in CLEAN
        ]
        texts += [f"`{kind}`: a file" for store_name, kind in sorted(kinds) if store_name == store]
        texts_by_key[key] = "; ".join(texts) or NOTHING
    return texts_by_key


def page_text(reports: Mapping[tuple[str, str], str]) -> str:
    """Return docs/reference/audit-faults.md."""
    return "\n".join(_lines(reports)) + "\n"


def table_row(reports: Mapping[tuple[str, str], str], name: str) -> str:
    """Return the line of a class in the page."""
    cells = (reports.get((broker, name), "not possible") for broker in BROKERS)
    return f"| {name} | {' | '.join(cells)} |"


def _lines(reports: Mapping[tuple[str, str], str]) -> Iterator[str]:
    head = f"| fault | {BROKERS[0]} | {BROKERS[1]} |", "|---|---|---|"
    yield from (INTRODUCTION, "", *head)
    yield from (table_row(reports, name) for name in (*FAULTS, CURSOR, BEYOND))
    yield from (OF_STORES, *head)
    yield from (table_row(reports, name) for name in STORE_FAULTS)
    yield from ("", "| no finding | why |", "|---|---|")
    yield from (f"| {name} | {reason} |" for name, reason in DERIVED.items())
    yield END
    yield "| fault | why |"
    yield "|---|---|"
    yield from (f"| {name} | {reason} |" for name, reason in UNDETECTABLE.items())


def main() -> None:
    """Write the page."""
    from spark_reconciliation.spark.session import local_session

    spark = local_session(cores=2, light=True)
    with tempfile.TemporaryDirectory(prefix="audit-faults-") as folder:
        PAGE.write_text(page_text(reported(spark, plant_all(Path(folder)))), encoding="utf-8")
    spark.stop()


if __name__ == "__main__":
    main()
