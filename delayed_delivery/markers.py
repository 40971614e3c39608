"""Markers: messages that cancel the timer that they name.

    TIMER_DEL_UNIQKEY=topic+key     Apache 5.3.3, and 5.5 with appendTopicForTimerDeleteKey
    TIMER_DEL_UNIQKEY=key           a recall of Apache 5.5; the timer is in the topic of the marker

Source: TimerMessageStore.buildDeleteKey, RecallMessageProcessor.buildMessage
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

MARKER: Final = "TIMER_DEL_UNIQKEY"
RECALL_TAG: Final = "_RECALL_TAG_"


class MarkerTarget(NamedTuple):
    """Timer that a marker names."""

    topic: str
    unique_key: str


def target_of(properties: Mapping[str, str], topic: str) -> MarkerTarget | None:
    """Return the timer that a message cancels; None if it cancels none.

    Args:
        properties: Properties of the message.
        topic: Topic to which the message was sent.
    """
    named = properties.get(MARKER, "")
    is_recall = properties.get("TAGS") == RECALL_TAG and named == properties.get("UNIQ_KEY")
    if named and is_recall:
        return MarkerTarget(topic, named)
    target, plus, key = named.partition("+")
    return MarkerTarget(target, key) if plus and key else None
