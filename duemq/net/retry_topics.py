"""Names of pop retry topics, and how receipt handles name their kinds. KeyBuilder."""

from __future__ import annotations

from collections.abc import Iterator

from duemq_common.topics import RETRY_PREFIX

NORMAL, RETRY_V1, RETRY_V2 = "0", "1", "2"
_V1, _V2 = "_", "+"


def retry_topic(topic: str, group: str) -> str:
    """Return the topic of messages of `topic` that `group` did not acknowledge in time."""
    return topic if topic.startswith(RETRY_PREFIX) else f"{RETRY_PREFIX}{group}{_V1}{topic}"


def retry_topics(topic: str, group: str) -> Iterator[str]:
    """Yield the pop retry topics that a pop of `topic` reads, those of both name versions."""
    for separator in (_V1, _V2):
        yield f"{RETRY_PREFIX}{group}{separator}{topic}"


def normal_topic(topic: str, group: str) -> str:
    """Return the topic of a pop retry topic of `group`, or any other topic unchanged."""
    for separator in (_V2, _V1):
        head = f"{RETRY_PREFIX}{group}{separator}"
        if topic.startswith(head):
            return topic.removeprefix(head)
    return topic


def retry_flag(topic: str) -> str:
    """Return the kind of a topic as receipt handles name it: `NORMAL`, `RETRY_V1`, `RETRY_V2`."""
    if not topic.startswith(RETRY_PREFIX):
        return NORMAL
    return RETRY_V2 if _V2 in topic else RETRY_V1


def topic_of_flag(topic: str, group: str, flag: str) -> str:
    """Return the topic of a message that was popped from `topic` with this flag.

    Raises:
        ValueError: The flag is unknown.
    """
    if flag == NORMAL:
        return topic
    v1, v2 = retry_topics(topic, group)
    popped_topic = {RETRY_V1: v1, RETRY_V2: v2}.get(flag)
    if popped_topic is None:
        raise ValueError(f"retry flag {flag[:8]!r} is not 0, 1 or 2")
    return popped_topic
