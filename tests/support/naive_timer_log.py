"""Naive timer log and wheel, as the reference for the kernels."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from timer_store import layout
from timer_store.kernels import chain

LAP = layout.WHEEL_SLOTS
INT_MIN, INT_MAX = -(1 << 31), (1 << 31) - 1


@dataclass(frozen=True)
class Timer:
    """Input row of the timer log."""

    due_ms: int
    slot_ms: int
    phys_offset: int
    record_size: int = 100
    topic_hash: int = 7
    kind: int = layout.TIMED_PLAIN


@dataclass(frozen=True)
class Unit:
    """A unit of the log, with the fields of `layout.TIMER_UNIT`."""

    prev_pos: int
    magic: int
    write_ms: int
    delay_ms: int
    phys_offset: int
    record_size: int
    topic_hash: int
    due_ms: int

    @property
    def slot_ms(self) -> int:
        return self.write_ms + self.delay_ms

    @property
    def is_marker(self) -> bool:
        return bool(self.magic & layout.MAGIC_DELETE)

    def pack(self) -> bytes:
        return layout.UNIT.pack(
            52,
            self.prev_pos,
            self.magic,
            self.write_ms,
            self.delay_ms,
            self.phys_offset,
            self.record_size,
            self.topic_hash,
            self.due_ms,
        )


def unpack(data: bytes, pos: int = 0) -> Unit:
    """Return the unit at data[pos]."""
    size, *values = layout.UNIT.unpack_from(data, pos)
    assert size == 52
    return Unit(*values)


@dataclass
class Slot:
    tick: int
    first_pos: int
    last_pos: int
    num: int


@dataclass
class Model:
    """Model of the log, units by position, and of the wheel, slots by index."""

    precision_ms: int = 1_000
    file_bytes: int = 2_600
    end: int = 0
    units: dict[int, Unit] = field(default_factory=dict)
    slots: dict[int, Slot] = field(default_factory=dict)

    def place(self) -> int:
        """Return the position of the next unit; start a new file if only a blank unit fits."""
        left = self.file_bytes - self.end % self.file_bytes
        return self.end if left >= 52 + 16 else self.end + left

    def add(self, timers: Iterable[Timer], write_ms: int, read_ms: int) -> int:
        """Add timers; return the number added."""
        p = self.precision_ms
        write_ms, read_ms = write_ms // p * p, read_ms // p * p
        taken = 0
        for timer in timers:
            self.end = self.place()  # a full file ends with the next position
            if timer.kind != layout.TIMED_BROKEN:
                slot_ms = max(timer.slot_ms, read_ms)
                tick = slot_ms // p
                old = self.slots.get(tick % LAP)
                needed = old is not None and old.tick != tick and old.tick >= read_ms // p
                if needed or tick - read_ms // p >= LAP:
                    return taken
                self.link(timer, tick, write_ms, slot_ms)
            taken += 1
        return taken

    def link(self, timer: Timer, tick: int, write_ms: int, slot_ms: int) -> None:
        slot = self.slots.get(tick % LAP)
        pos = self.place()
        if slot is None or slot.tick != tick:
            slot = self.slots[tick % LAP] = Slot(tick, pos, -1, 0)
        magic = 1
        if (timer.due_ms - 1) // self.precision_ms > tick:
            magic |= 2
        if timer.kind == layout.TIMED_MARKER:
            magic |= 4
        if not INT_MIN <= slot_ms - write_ms <= INT_MAX:
            write_ms = slot_ms
        self.units[pos] = Unit(
            slot.last_pos,
            magic,
            write_ms,
            slot_ms - write_ms,
            timer.phys_offset,
            timer.record_size,
            timer.topic_hash,
            timer.due_ms,
        )
        slot.last_pos, slot.num = pos, slot.num + (not magic & 4)
        self.end = pos + 52

    def in_slot(self, tick: int) -> list[tuple[int, Unit]]:
        """Return (position, unit) of a slot, in the order of the log."""
        return [
            (pos, unit)
            for pos, unit in sorted(self.units.items())
            if unit.slot_ms // self.precision_ms == tick
        ]

    def pending(self, tick: int, skip: Iterable[int] = ()) -> list[tuple[int, Unit]]:
        """Return `in_slot` without settled units, and one unit for each record."""
        units = self.in_slot(tick)
        seen = {*skip, *(unit.phys_offset for _, unit in units if unit.due_ms < -1)}
        kept = []
        for pos, unit in units:
            if unit.phys_offset not in seen and unit.due_ms >= 0:
                kept.append((pos, unit))
                seen.add(unit.phys_offset)
        return kept

    def settle(self, positions: Iterable[int], *, copied: bool = False) -> int:
        waited = 0
        for pos in set(positions):
            unit = self.units[pos]
            if unit.due_ms >= 0:
                due_ms = -1 if copied else min(-unit.due_ms, -unit.slot_ms - 2)
                self.units[pos] = replace(unit, due_ms=due_ms, magic=layout.MAGIC_DELETE)
                slot = self.slots[unit.slot_ms // self.precision_ms % LAP]
                if slot.tick == unit.slot_ms // self.precision_ms and not unit.is_marker:
                    slot.num -= 1
                waited += not unit.is_marker
        return waited

    def cut(self, end: int) -> None:
        """Drop the units from `end` on and recount their slots."""
        self.units = {pos: unit for pos, unit in self.units.items() if pos < end}
        self.end = end
        for index, slot in list(self.slots.items()):
            if slot.last_pos >= end:
                del self.slots[index]
                self.link_slot(slot.tick)

    def link_slot(self, tick: int) -> None:
        """Rebuild a slot from the existing units."""
        units = self.in_slot(tick)
        if units:
            pending = [unit for _, unit in units if unit.due_ms >= 0 and not unit.is_marker]
            self.slots[tick % LAP] = Slot(tick, units[0][0], units[-1][0], len(pending))


def staged(pos: int, unit: Unit, precision_ms: int) -> tuple[int, ...]:
    """Return the columns of `layout.STAGED` for a pending unit."""
    due_ms = unit.due_ms
    if due_ms == 0 and not unit.magic & layout.MAGIC_ROLL:
        due_ms = unit.slot_ms + precision_ms
    return (
        due_ms,
        unit.phys_offset,
        pos,
        unit.write_ms,
        unit.record_size,
        unit.topic_hash,
        unit.magic,
        layout.STAGED_PENDING,
    )


def is_plain_marker(unit: Unit) -> bool:
    return unit.magic & 6 == 4


def columns(rows: Any) -> list[tuple[int, ...]]:
    """Return structured rows as tuples."""
    return [tuple(int(value) for value in row) for row in rows]


# -- one file of the log as bytes ----------------------------------------------------------------


def fault(data: bytes, base: int, pos: int, tick: int | None = None, precision_ms: int = 1) -> int:
    """Return the FAULT_* of the unit at `pos`, which must be of the slot `tick`."""
    position = pos - base
    if position % 52 or position + 52 > len(data):
        return chain.FAULT_PLACE
    if int.from_bytes(data[position : position + 4], "big") != 52:
        return chain.FAULT_SIZE
    unit = unpack(data, position)
    if not 0 <= unit.magic <= 15:
        return chain.FAULT_MAGIC
    if not -1 <= unit.prev_pos < pos:
        return chain.FAULT_PREV
    if tick is not None and unit.slot_ms // precision_ms != tick:
        return chain.FAULT_SLOT
    return 0


def times_match(unit: Unit, precision_ms: int, window_ms: int) -> bool:
    """Return whether `enqueue` may have put a unit with its due time into its slot."""
    own_ms = unit.due_ms - 1
    if unit.due_ms <= 0 or own_ms == unit.slot_ms:
        return True
    if own_ms < unit.slot_ms:  # overdue timers are put at the start of the slot that is read
        return unit.slot_ms % precision_ms == 0
    return bool(unit.magic & layout.MAGIC_ROLL) and (own_ms - unit.slot_ms) % window_ms == 0


def follow(
    data: bytes,
    base: int,
    pos: int,
    tick: int,
    precision_ms: int,
    limit_pos: int = -1,
    window_ms: int | None = None,
) -> tuple[list[tuple[int, Unit]], int, int]:
    """Return (units newest first, position where the chain leaves the file, final fault).

    Args:
        window_ms: Roll window; None: the times of the units are not checked.
    """
    units: list[Any] = []
    while pos >= base and pos >= limit_pos:
        wrong = fault(data, base, pos, tick, precision_ms)
        if not wrong and window_ms is not None:
            matches = times_match(unpack(data, pos - base), precision_ms, window_ms)
            wrong = 0 if matches else chain.FAULT_TIMES
        if wrong:
            return units, pos, wrong
        unit = unpack(data, pos - base)
        units.append((pos, unit))
        pos = unit.prev_pos
    return units, pos, 0
