"""Allocation of queues to the members of a group: pure decisions, equal to Apache's.

Source: AllocateMessageQueueAveragely, AllocateMessageQueueAveragelyByCircle,
QueryAssignmentProcessor.allocate4Pop
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

ANY_QUEUE: Final = -1


class AssignedQueue(NamedTuple):
    """A queue of one broker; sorted as Apache sorts them: MessageQueue.compareTo."""

    topic: str
    broker_name: str
    queue_id: int


Queues = Sequence[AssignedQueue]
Strategy = Callable[[int, int, int], range]
"""Returns indexes of queues; takes the member's index, the number of queues and of members."""


def averagely(index: int, queues: int, members: int) -> range:
    """Return one piece of successive queues."""
    share, rest = divmod(queues, members)
    start = index * share + min(index, rest)
    return range(start, start + share + (index < rest))


def by_circle(index: int, queues: int, members: int) -> range:
    """Return each queue that is `members` after the one before."""
    return range(index, queues, members)


STRATEGIES: Final[dict[str, Strategy]] = {"AVG": averagely, "AVG_BY_CIRCLE": by_circle}


def allocate(
    strategy: Strategy, queues: Queues, members: Sequence[str], member: str
) -> list[AssignedQueue]:
    """Return the queues that a member pulls.

    Args:
        queues, members: All of them, sorted.
    """
    if member not in members:
        return []
    return [queues[at] for at in strategy(members.index(member), len(queues), len(members))]


def allocate_for_pop(
    strategy: Strategy, queues: Queues, members: Sequence[str], member: str, shared: int
) -> list[AssignedQueue]:
    """Return the queues that a member pops; id -1: any queue of that broker.

    Args:
        queues, members: All of them, sorted.
        shared: Number of following members whose queues it pops as well.
    """
    if shared <= 0 or shared >= len(members) - 1:
        return [queue._replace(queue_id=ANY_QUEUE) for queue in queues]
    if member not in members:
        return []
    first = members.index(member)
    if len(members) > len(queues):  # each member pops one queue
        return [queues[first % len(queues)]]
    sharing = [(first + n) % len(members) for n in range(shared + 1)]
    return [queues[at] for n in sharing for at in strategy(n, len(queues), len(members))]
