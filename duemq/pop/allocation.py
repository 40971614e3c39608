"""Allocation of queues to the members of a group: pure decisions, equal to Apache's.

Source: AllocateMessageQueueAveragely, AllocateMessageQueueAveragelyByCircle,
QueryAssignmentProcessor.allocate4Pop
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

ANY_QUEUE: Final = -1


class AssignedQueue(NamedTuple):
    """Queue of one broker, with the sort order of MessageQueue.compareTo."""

    topic: str
    broker_name: str
    queue_id: int


Queues = Sequence[AssignedQueue]
Strategy = Callable[[int, int, int], range]
"""Function of a member's index, the number of queues and the number of members.

It returns the indexes of the member's queues.
"""


def averagely(index: int, queues: int, members: int) -> range:
    """Return one range of consecutive queues."""
    share, rest = divmod(queues, members)
    start = index * share + min(index, rest)
    return range(start, start + share + (index < rest))


def by_circle(index: int, queues: int, members: int) -> range:
    """Return every queue whose index modulo `members` is `index`."""
    return range(index, queues, members)


STRATEGIES: Final[dict[str, Strategy]] = {"AVG": averagely, "AVG_BY_CIRCLE": by_circle}


def allocate(
    strategy: Strategy, queues: Queues, members: Sequence[str], member: str
) -> list[AssignedQueue]:
    """Return the queues that a member pulls.

    Args:
        queues: All queues of the topic, sorted.
        members: Client ids of all members, sorted.
        member: Client id; an unknown member gets no queues.
    """
    if member not in members:
        return []
    return [
        queues[position] for position in strategy(members.index(member), len(queues), len(members))
    ]


def allocate_for_pop(
    strategy: Strategy, queues: Queues, members: Sequence[str], member: str, shared: int
) -> list[AssignedQueue]:
    """Return the queues that a member pops; `ANY_QUEUE`: any queue of that broker.

    Args:
        queues: All queues of the topic, sorted.
        members: Client ids of all members, sorted.
        member: Client id; an unknown member gets no queues, unless each member pops all queues.
        shared: Number of following members whose queues the member pops as well. If it is 0 or
            less, or covers all other members, each member pops all queues.
    """
    if shared <= 0 or shared >= len(members) - 1:
        return [queue._replace(queue_id=ANY_QUEUE) for queue in queues]
    if member not in members:
        return []
    first = members.index(member)
    if len(members) > len(queues):  # each member pops one queue
        return [queues[first % len(queues)]]
    sharing = [(first + n) % len(members) for n in range(shared + 1)]
    return [
        queues[position] for n in sharing for position in strategy(n, len(queues), len(members))
    ]
