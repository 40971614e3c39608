"""Pieces of a search for pending messages: topics and unique keys of the messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from delayed_delivery.pending import HitQuery, Offsets, PendingPiece
from message_store.index.key_search import owners

if TYPE_CHECKING:
    from message_store.store import MessageStore


def piece_of(
    store: MessageStore,
    query: HitQuery,
    offsets: Offsets,
    due_ms: Offsets,
    cursor: str | None,
    *,
    may_repeat: bool = False,
    damage: Sequence[str] = (),
) -> PendingPiece:
    """Return the piece of these messages, without those of other topics.

    A message whose record cannot be read is included: its topic is not known.
    """
    topic_indexes, keys = owners(store, offsets)
    if query.topic and offsets.size:
        topic_index = store.topics.find(query.topic)
        fits = (topic_indexes == topic_index) | (topic_indexes < 0)
        if not fits.all():
            offsets, due_ms, topic_indexes = offsets[fits], due_ms[fits], topic_indexes[fits]
            keys = [
                key for key, is_included in zip(keys, fits.tolist(), strict=True) if is_included
            ]
    return PendingPiece(
        offsets=offsets,
        due_ms=due_ms,
        topic_indexes=topic_indexes,
        keys=keys,
        cursor=cursor,
        may_repeat=may_repeat,
        damage=list(damage),
    )
