"""Classes of faults, planted in stores of DueMQ and of Apache's broker, and what one audit reports.

    python -m tests.support.fault_classes      writes docs/reference/audit-faults.md

The stores are read and changed by `plain_store`, which shares no code with the audit.
"""

from __future__ import annotations

import struct
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping
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
    copy_sparse,
)
from tests.support.stores import add_message

PAGE: Final = Path(__file__).parents[2] / "docs" / "reference" / "audit-faults.md"
BROKERS: Final = ("DueMQ", "Apache 5.3.3")
APACHE: Final = "apache-5.3.3-clean"
OFFSETS: Final = "delayOffset.json"
HUGE: Final = 10_000_000
EACH: Final = 16
LATE_MS: Final = 5_000


@dataclass
class Scene:
    """A store to be changed.

    Attributes:
        sent: Pending records with their only deliveries, not used by a fault yet.
        waiting: Pending records without a delivery, by topic.
        queued: Topics with queues of ordinary messages.
    """

    store: PlainStore
    sent: list[tuple[Record, Record]]
    waiting: dict[str, list[Record]]
    queued: list[tuple[str, int]] = field(default_factory=list)

    @classmethod
    def of_store(cls, root: Path) -> Scene:
        """Pair the records of a store: by origin (DueMQ), or by unique id (Apache)."""
        store = PlainStore(root)
        records = store.records()
        held = [r for r in records if r.topic in (SCHEDULE, TIMERS)]
        others = [r for r in records if r.topic not in (SCHEDULE, TIMERS)]
        by_origin = {r.origin: r for r in others if r.origin is not None}
        by_name: dict[str, list[Record]] = {}
        for record in others:
            by_name.setdefault(record.properties.get("UNIQ_KEY", ""), []).append(record)
        cancelled = {
            r.properties.get("UNIQ_KEY") for r in held if "TIMER_DEL_UNIQKEY" in r.properties
        }
        scene = cls(store, [], {SCHEDULE: [], TIMERS: []})
        for record in held:
            name = record.properties.get("UNIQ_KEY", "")
            if "TIMER_DEL_UNIQKEY" in record.properties or name in cancelled:
                continue
            named = by_name.get(name, [])
            one = by_origin.get(record.at) or (named[0] if len(named) == 1 else None)
            if one is not None and one.at > record.at:
                scene.sent.append((record, one))
            elif not named:
                scene.waiting[record.topic].append(record)
        scene.queued = [key for key in store.queues() if key[0] not in (SCHEDULE, TIMERS)]
        return scene

    def take(self) -> tuple[Record, Record]:
        return self.sent.pop(0)

    def wait(self, topic: str) -> Record:
        """Return a pending record that is not the first of its queue."""
        at = next(n for n, record in enumerate(self.waiting[topic]) if record.number > 0)
        return self.waiting[topic].pop(at)

    def unit(self, record: Record) -> tuple[int, int, int]:
        return self.store.units(record.topic, record.queue)[record.number]


def filler(record: Record) -> bytes:
    """Return a valid record of another message with the size and place of a record."""
    size = record.size - 91 - len("filler")
    body = b"x" * size
    head = HEAD.pack(
        record.size, V1, zlib.crc32(body) & 0x7FFF_FFFF, 0, 0, 0, record.at, 0, record.born_ms
    )
    tail = struct.pack(">iqi", 0, 0, size) + body + b"\x06filler" + struct.pack(">h", 0)
    return head + bytes(8) + struct.pack(">q", record.store_ms) + bytes(8) + tail


Fault = Callable[[Scene], int]
"""Changes a store; returns the log offset of the message's first record."""


def on_delivery(change: Callable[[PlainStore, Record], None]) -> Fault:
    def do(scene: Scene) -> int:
        held, sent = scene.take()
        change(scene.store, sent)
        return held.at

    return do


def field_at(offset: int, form: str, change: Callable[[Record], int]) -> Fault:
    """Change a field of the head of a delivery."""
    return on_delivery(lambda store, sent: store.put(sent.at + offset, form, change(sent)))


def on_unit(change: Callable[[int, int, int], tuple[int, int, int]]) -> Fault:
    """Change the unit of a delivery."""

    def do(scene: Scene) -> int:
        held, sent = scene.take()
        unit = change(*scene.unit(sent))
        scene.store.put_unit(sent.topic, sent.queue, sent.number, unit)
        return held.at

    return do


def flip_body(fix: bool) -> Fault:
    def change(store: PlainStore, sent: Record) -> None:
        store.put(sent.body_at, "B", sent.body[0] ^ 0x10)
        if fix:
            store.fix_crc(sent.at)

    return on_delivery(change)


def change_property(store: PlainStore, sent: Record) -> None:
    raw = store.log.read(sent.properties_at, sent.at + sent.size - sent.properties_at)
    at = raw.index(b"KEYS\x01") + 5
    store.put(sent.properties_at + at, "B", raw[at] ^ 1)


def stored(by_ms: int) -> Fault:
    return on_delivery(lambda store, sent: store.put(sent.store_ms_at, ">q", sent.store_ms + by_ms))


def overwrite_pending(topic: str) -> Fault:
    def do(scene: Scene) -> int:
        record = scene.wait(topic)
        scene.store.log.write(record.at, filler(record))
        return record.at

    return do


def neighbour_of_pending(topic: str) -> Fault:
    def do(scene: Scene) -> int:
        record = scene.wait(topic)
        units = scene.store.units(topic, record.queue)
        scene.store.put_unit(topic, record.queue, record.number, units[record.number - 1])
        return record.at

    return do


def second_unit(scene: Scene) -> int:
    held, sent = scene.take()
    number = len(scene.store.units(sent.topic, sent.queue))
    scene.store.put_unit(sent.topic, sent.queue, number, scene.unit(sent))
    return held.at


def foreign_unit(scene: Scene) -> int:
    held, sent = scene.take()
    topic, queue = next(key for key in scene.queued if key[0] != sent.topic)
    number = len(scene.store.units(topic, queue))
    scene.store.put_unit(topic, queue, number, scene.unit(sent))
    return held.at


def duplicate(scene: Scene) -> int:
    held, sent = scene.take()
    raw = scene.store.log.read(sent.at, sent.size)
    scene.store.append(raw, sent.queue, scene.store.records()[-1].store_ms + 1)
    return held.at


FAULTS: Final[Mapping[str, Fault]] = {
    "delivery overwritten with zeros": on_delivery(
        lambda store, sent: store.log.write(sent.at, bytes(sent.size))
    ),
    "delivery overwritten with another valid record": on_delivery(
        lambda store, sent: store.log.write(sent.at, filler(sent))
    ),
    "delivery without the name of its source": on_delivery(
        lambda store, sent: store.put(sent.prepared_at, ">q", 0)
    ),
    "pending level message overwritten with another valid record": overwrite_pending(SCHEDULE),
    "pending timer overwritten with another valid record": overwrite_pending(TIMERS),
    "delivery twice": duplicate,
    "delivery in another queue": field_at(QUEUE_AT, ">i", lambda sent: (sent.queue + 1) % 4),
    "body changed, CRC correct": flip_body(fix=True),
    "body changed, CRC stale": flip_body(fix=False),
    "property changed": on_delivery(change_property),
    "flag changed": field_at(FLAG_AT, ">i", lambda sent: sent.flag ^ 1),
    "system flag changed": field_at(SYS_AT, ">i", lambda sent: sent.sys_flag ^ 1),
    "birth time changed": field_at(BORN_AT, ">q", lambda sent: sent.born_ms - 1_000),
    "producer's address changed": field_at(HEAD.size, "B", lambda sent: sent.host[0] ^ 1),
    "number of reconsumptions changed": on_delivery(
        lambda store, sent: store.put(sent.reconsumed_at, ">i", sent.reconsumed + 1)
    ),
    "stored before its due time": stored(-LATE_MS),
    "stored too late": stored(LATE_MS),
    "unit with another size": on_unit(lambda at, size, code: (at, size - 1, code)),
    "unit with another tags code": on_unit(lambda at, size, code: (at, size, code + 1)),
    "unit at another log offset": on_unit(lambda at, size, code: (at + 7, size, code)),
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
    "body changed in the pending record and in its delivery, CRCs correct":
        "both records agree; only the producer knows the body",
    "pending record, delivery and the units of both overwritten":
        "nothing in the store shows that the message existed",
    "cursor of a level moved back, or removed":
        "DueMQ derives it from the log; Apache delivers again, which is then `duplicated`",
    "topic deleted": "a request of an administrator; the messages are not lost",
}  # fmt: skip
INTRODUCTION: Final = """\
# Faults that an audit reports

Each class of fault is planted in a store of DueMQ and in one of Apache's broker 5.3.3, by a program
that shares no code with the audit. One audit of these stores made this table: verdict and reason of
the message (`python -m tests.support.fault_classes`; `tests/reconciliation/test_fault_classes.py`
compares it)."""
END: Final = """
Damage of whole files is in [damaged files](damaged-files.md). Classes that a store cannot show:
"""


@dataclass
class Planted:
    """Stores with faults.

    Attributes:
        roots: Path of the store and log offset of the message, by (broker, class).
    """

    stores: list[str] = field(default_factory=list)
    roots: dict[tuple[str, str], tuple[str, int]] = field(default_factory=dict)

    def add(self, broker: str, name: str, store: Path, root: int) -> None:
        self.roots[broker, name] = (str(store), root)
        if str(store) not in self.stores:
            self.stores.append(str(store))


def plant_all(home: Path) -> Planted:
    """Plant every class in stores of both brokers below `home`."""
    planted = Planted()
    for broker, source in zip(
        BROKERS, (made_store(home / "made"), golden_store(APACHE)), strict=True
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
    return planted


def move_cursor(scene: Scene, by: int) -> int:
    """Move the cursor of a level to the end of its queue, or after it; return a passed message."""
    record = scene.waiting[SCHEDULE][-1]
    saved = scene.store.json(OFFSETS)
    saved["offsetTable"][str(record.queue + 1)] = (
        len(scene.store.units(SCHEDULE, record.queue)) + by
    )
    scene.store.write_json(OFFSETS, saved)
    return record.at


def made_store(root: Path) -> Path:
    """Make a store of DueMQ with delivered and pending messages of levels and timers."""
    rig = MigrationRig(root, levels="1s 1h").open()
    for topic in ("T", "U"):
        for n in range(EACH):
            now_ms = rig.clock.now_ms()
            own = {"TAGS": f"tag{n}", "KEYS": f"key{n}", "color": "red"}
            for name, wish in (
                ("near", {"DELAY": "1"}), ("far", {"DELAY": "2"}),
                ("soon", {"TIMER_DELIVER_MS": str(now_ms + 2_000)}),
                ("later", {"TIMER_DELIVER_MS": str(now_ms + 3_600_000 + n * 1_000)}),
            ):  # fmt: skip
                batch = PutBatch(1)
                properties = own | wish | {"UNIQ_KEY": f"{topic}-{n}-{name}"}
                add_message(rig.store, batch, topic, n % 4, b"body" * 9, properties=properties)
                rig.put(batch)
        rig.work()
        rig.advance(5_000)
    rig.close()
    return root


def reported(spark: Any, planted: Planted) -> dict[tuple[str, str], str]:
    """Return what one audit of all stores reports about each planted fault."""
    from reconciliation.spark.read import audit_stores

    verdicts, unread = audit_stores(spark, planted.stores, ids=False)
    rows = {(row["store"], row["root"]): row for row in verdicts.collect()}
    kinds = {(row["store"], row["damage"]) for row in unread.collect()}
    found = {}
    for key, place in planted.roots.items():
        row = rows.get(place)
        text = "no row" if row is None else f"`{row['verdict']}`: {row['why'] or 'nothing'}"
        if key[1] == BEYOND and (place[0], "impossible") in kinds:
            text += "; `impossible`: the file"
        found[key] = text
    return found


def page_text(found: Mapping[tuple[str, str], str]) -> str:
    """Return docs/reference/audit-faults.md."""
    return "\n".join(_lines(found)) + "\n"


def _lines(found: Mapping[tuple[str, str], str]) -> Iterator[str]:
    yield INTRODUCTION
    yield ""
    yield f"| fault | {BROKERS[0]} | {BROKERS[1]} |"
    yield "|---|---|---|"
    for name in (*FAULTS, CURSOR, BEYOND):
        cells = (found.get((broker, name), "not possible") for broker in BROKERS)
        yield f"| {name} | {' | '.join(cells)} |"
    yield END
    yield "| fault | why |"
    yield "|---|---|"
    yield from (f"| {name} | {why} |" for name, why in UNDETECTABLE.items())


def main() -> None:
    """Write the page."""
    from reconciliation.spark.session import local_session

    spark = local_session(cores=2, light=True)
    with tempfile.TemporaryDirectory(prefix="audit-faults-") as folder:
        PAGE.write_text(page_text(reported(spark, plant_all(Path(folder)))), encoding="utf-8")
    spark.stop()


if __name__ == "__main__":
    main()
