"""Invariants of a group, checked at any time, and checks after the group has recovered.

Confirmed bytes never change: all members that confirm a log offset have the same bytes there, and
each later master has all confirmed bytes. Acknowledged messages are in the confirmed bytes.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from delayed_delivery.level_delays import parse_levels
from duemq.replication.epoch_file import EpochEntry
from duemq_common.codes import RequestCode
from duemq_common.topics import SCHEDULE_TOPIC, TIMER_TOPIC
from message_store.log.record import Record, decode_record
from message_store.store import NOTHING_CONFIRMED
from tests.simulation.group_rig import LEVEL_TEXT, GroupRig, Member

TOPICS: Final = ("T", "Other")
READERS: Final = "readers"
MARKER: Final = "TIMER_DEL_UNIQKEY"
HELD: Final = (SCHEDULE_TOPIC, TIMER_TOPIC)
MOVED, UNMOVED = b"DELAy\x01", b"DELAY\x01"
"""The one name that changes in place, while a migration has the timers own the message."""
DELAYS_MS: Final = parse_levels(LEVEL_TEXT).tolist()


def log_bytes(store: Any, begin: int, end: int) -> bytes:
    """Return the bytes of a log between two offsets; moved level messages as they were sent."""
    parts, at = [], begin
    while at < end:
        stop = min(end, at - at % store.log.file_bytes + store.log.file_bytes)
        parts.append(bytes(store.log.view(at, stop - at)))
        at = stop
    return b"".join(parts).replace(MOVED, UNMOVED)


class Confirmed:
    """Confirmed log of the group.

    Attributes:
        log: Bytes that any member has confirmed.
        epoch: Newest epoch of a master that has confirmed bytes.
    """

    def __init__(self, rig: GroupRig) -> None:
        self._rig = rig
        self.log = bytearray()
        self.epoch = 0
        self._stores: dict[int, Any] = {}
        self._checked: dict[int, int] = {}
        rig.observers.append(self.observe)

    def observe(self, member: Member) -> None:
        """Compare the confirmed bytes of a member."""
        store = member.store
        if store is None:
            return
        if self._stores.get(member.number) is not store:
            self._stores[member.number] = store
            self._checked[member.number] = 0
            self._check_new_master(member)
        begin, end = self._checked[member.number], store.confirm_offset
        if end <= max(begin, NOTHING_CONFIRMED):
            return
        found = log_bytes(store, begin, end)
        known = bytes(self.log[begin:end])
        assert found.startswith(known), (
            f"{member.host.name} shows other bytes from {begin + _first_difference(found, known)}"
        )
        self.log += found[len(known) :]
        self._checked[member.number] = end
        assert member.broker is not None
        role = member.broker.runner.role
        if not role.is_replica and len(found) > len(known):
            self.epoch = max(self.epoch, role.epoch)

    def _check_new_master(self, member: Member) -> None:
        """Check that a new master has all confirmed bytes."""
        assert member.broker is not None
        role, store = member.broker.runner.role, member.store
        if role.is_replica:
            return
        self._rig.note(f"{member.host.name} serves as master of epoch {role.epoch}")
        if role.epoch < self.epoch:
            return
        end = len(self.log)
        assert store.max_offset >= end, f"{member.host.name} lacks {store.max_offset} to {end}"
        assert log_bytes(store, 0, end) == self.log, f"{member.host.name} has another log"

    def check_acknowledged(self, offset: int, body: bytes, where: str) -> None:
        """Check that an acknowledged message is in the confirmed log."""
        assert offset < len(self.log), f"{where} acknowledges {offset} of {len(self.log)}"
        size = int.from_bytes(self.log[offset : offset + 4], "big")
        record = decode_record(memoryview(bytes(self.log[offset : offset + size])), 0)
        assert record.body == body, f"{where} acknowledges {body!r} for {record.body!r}"

    def check_shown(self, offset: int, data: bytes, where: str) -> None:
        """Check that a record delivered to a client is in the confirmed log."""
        known = self.log[offset : offset + len(data)]
        assert known == data.replace(MOVED, UNMOVED), (
            f"{where} shows what is not confirmed at {offset}"
        )


class CopiedOffsets:
    """Check that consumer offsets of replicas refer only to synced messages of their own log.

    Attributes:
        checks: Number of checked tables.
    """

    def __init__(self, rig: GroupRig) -> None:
        self._rig = rig
        self._versions: dict[int, object] = {}
        self.checks = 0
        rig.observers.append(self._observe)

    def _observe(self, member: Member) -> None:
        broker = member.serving
        if broker is None or broker.parts.replica is None or member.store is None:
            return
        offsets = broker.parts.offsets
        if self._versions.get(member.number) is offsets.version:
            return
        self._versions[member.number] = offsets.version
        for name, queues in offsets.offset_table().items():
            self.checks += 1
            for queue, offset in queues.items():
                _, end = member.store.queue_bounds(name.partition("@")[0], queue)
                assert offset <= end, (
                    f"{member.host.name} has offset {offset} of {name} {queue}, which ends at {end}"
                )


def check_offsets(rig: GroupRig, committed: dict[tuple[str, int], int]) -> None:
    """Check that no member has a consumer offset beyond the highest committed one."""
    for member in rig.members:
        for name, queues in member.serving.parts.offsets.offset_table().items():
            for queue, offset in queues.items() if name.endswith(f"@{READERS}") else ():
                highest = committed.get((name.partition("@")[0], queue), 0)
                where = f"{member.host.name} has offset {offset} of {name} {queue}"
                assert offset <= highest, f"{where}; {highest} was committed"


def _first_difference(first: bytes, second: bytes) -> int:
    pairs = zip(first, second, strict=False)
    return next((at for at, (one, other) in enumerate(pairs) if one != other), -1)


def due_ms_of(record: Record, at: dict[int, Record]) -> int:
    """Return the due time of a held record, by its own properties.

    A level message that a rollback made of a timer keeps the due time of that timer.

    Args:
        at: All records by log offset.
    """
    origin = at.get(-(record.prepared_offset + 1))
    if record.topic == SCHEDULE_TOPIC and origin is not None and origin.topic == TIMER_TOPIC:
        return due_ms_of(origin, at)
    if record.topic == SCHEDULE_TOPIC:
        return int(record.store_ms) + int(DELAYS_MS[record.queue_id + 1])
    if "TIMER_DELAY_MS" in record.properties:
        return int(record.store_ms) + int(record.properties["TIMER_DELAY_MS"])
    if "TIMER_DELIVER_MS" in record.properties:
        return int(record.properties["TIMER_DELIVER_MS"])
    return int(record.properties["DUEMQ_DUE_MS"])  # sent with a level that is routed


def origins_of(records: list[Record]) -> dict[int, Record]:
    """Return the records derived from pending records, by the log offset of the pending record."""
    found: dict[int, Record] = {}
    for record in records:
        if record.prepared_offset < 0:
            origin = -(record.prepared_offset + 1)
            if origin in found and (MARKER in record.properties or _names_fired(record)):
                continue  # the second record about a message that was fired
            assert origin not in found, f"{record.body!r} at {record.phys_offset} is a second one"
            found[origin] = record
    return found


def _names_fired(record: Record) -> bool:
    return record.properties.get("DUEMQ_DECISION") == "fired"


def pending_in(records: list[Record]) -> int:
    """Return the number of pending records that are neither delivered nor settled."""
    origins = origins_of(records)
    return sum(is_held(each) and each.phys_offset not in origins for each in records)


def is_held(record: Record) -> bool:
    """Return whether a record is stored for later delivery; markers of cancels are not."""
    return record.topic in HELD and MARKER not in record.properties


def _moves_of(offset: int, origins: dict[int, Record]) -> int:
    """Return how often a held record was replaced by a timer with another time."""
    count, made = 0, origins.get(offset)
    while made is not None:
        count += made.topic == TIMER_TOPIC
        made = origins.get(made.phys_offset)
    return count


def check_messages(records: list[Record], sent: dict[bytes, Any]) -> Counter[bytes]:
    """Check the whole log of the last master; return the number of deliveries by body."""
    origins, at = origins_of(records), {each.phys_offset: each for each in records}
    for record in records:
        made = origins.get(record.phys_offset)
        if not is_held(record):
            continue
        assert made is not None, f"{record.body!r} at {record.phys_offset} is still pending"
        decisions = sent[record.body].decisions if record.body in sent else set[int]()
        earlier = {RequestCode.FIRE_PENDING, RequestCode.MOVE_PENDING}
        if made.topic in TOPICS and not decisions & earlier:
            early_ms = due_ms_of(record, at) - made.store_ms
            assert early_ms <= 0, f"{record.body!r} is {early_ms} ms early"
    arrived = Counter(each.body for each in records if each.topic in TOPICS)
    for body, message in sent.items():
        count = arrived[body]
        assert count <= 1, f"{message.kind} message {body!r} came {count} times"
        if message.is_cancelled:
            assert count == 0, f"{message.kind} message {body!r} was cancelled, and came"
        elif message.offset is not None and RequestCode.CANCEL_PENDING not in message.decisions:
            assert count == 1, f"{message.kind} message {body!r} of {message.offset} is lost"
        moves = 0 if message.offset is None else _moves_of(message.offset, origins)
        assert message.moves <= moves, f"{body!r} was moved {message.moves} times, and {moves} stay"
    return arrived


def check_equal(rig: GroupRig) -> None:
    """Check that all members have the same log and the same epochs."""
    first, *others = rig.members
    log, epochs = log_bytes(first.store, 0, first.store.max_offset), epochs_of(first)
    for other in others:
        end = other.store.max_offset
        assert log_bytes(other.store, 0, end) == log, f"{other.host.name} has another log"
        found = epochs_of(other)
        assert found == epochs, f"{other.host.name} has other epochs: {found}, not {epochs}"


def epochs_of(member: Member) -> list[EpochEntry]:
    """Return the epochs of a log, without those in which nothing was written.

    Transfers do not contain empty epochs, so that a connected replica does not record them.
    """
    assert member.broker is not None
    starts = {entry.start_offset: entry for entry in member.broker.epochs.epochs.entries}
    starts.pop(member.store.max_offset, None)
    return list(starts.values())
