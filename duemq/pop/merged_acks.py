"""Acknowledgements of one turn of the event loop, merged by checkpoint.

All acknowledgements of one checkpoint become one record. Apache's broker stores the
acknowledgements of a batch (200151) in the same way.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct, field

from duemq.pop.checkpoints import OFFSETS_MAX, Acknowledgement, Entry

AckKey = tuple[int, str, str, int, int, int, str, int]
"""Revive queue, topic, group, queue, start offset, pop time, broker name, due time."""


class MergedAcks(Struct):
    """Offsets of acknowledged messages by checkpoint, in order of arrival."""

    _offsets: dict[AckKey, dict[int, None]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._offsets)

    def add(self, revive_queue: int, record: Acknowledgement) -> AckKey:
        """Add an acknowledgement; return the key of its record."""
        key = (
            revive_queue,
            record.topic,
            record.group,
            record.queue_id,
            record.start_offset,
            record.pop_ms,
            record.broker_name,
            record.due_ms,
        )
        self.extend(key, record.offsets)
        return key

    def extend(self, key: AckKey, offsets: Sequence[int]) -> None:
        """Add queue offsets to a checkpoint's record; duplicates have no effect."""
        merged = self._offsets.get(key)
        if merged is None:
            self._offsets[key] = dict.fromkeys(offsets)
        else:
            merged.update(dict.fromkeys(offsets))

    def take(self) -> tuple[list[AckKey], list[Entry]]:
        """Remove and return the merged acknowledgements.

        Returns:
            Key of each record, and the records. A checkpoint with more than `OFFSETS_MAX` offsets
            has several records with the same key.
        """
        taken, self._offsets = self._offsets, {}
        parts = [
            (key, offsets[index : index + OFFSETS_MAX])
            for key, offsets in ((key, tuple(each)) for key, each in taken.items())
            for index in range(0, len(offsets), OFFSETS_MAX)
        ]
        entries: list[Entry] = [(key[0], _record(key, offsets)) for key, offsets in parts]
        return [key for key, _ in parts], entries


def _record(key: AckKey, offsets: tuple[int, ...]) -> Acknowledgement:
    _, topic, group, queue_id, start_offset, pop_ms, broker_name, due_ms = key
    return Acknowledgement(
        topic=topic,
        group=group,
        queue_id=queue_id,
        start_offset=start_offset,
        pop_ms=pop_ms,
        offsets=offsets,
        broker_name=broker_name,
        due_ms=due_ms,
    )
