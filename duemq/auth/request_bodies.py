"""Names in the bodies of requests, for the permission check.

The check runs before the handler, for every account. It decodes only names and skips everything
else, because a body of 1 MiB has room for a hundred thousand objects. A body in which a name is
not text is refused; null is the same as a missing name.
"""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec
from msgspec import Struct, field

NOTHING: Final = frozenset({b"", b"null", b"[]", b'""', b"{}", b"false", b"0"})
BLANKS: Final = b" \t\r\n"
# The structs form no cycles: the garbage collector need not track them (gc=False).
B = TypeVar("B", bound=Struct)


class _Subscription(Struct, gc=False):
    topic: str | None = None


class _Consumer(Struct, gc=False):
    group: str | None = field(default=None, name="groupName")
    subscriptions: list[_Subscription] | None = field(default=None, name="subscriptionDataSet")


class HeartbeatBody(Struct):
    """Heartbeat (34).

    Attributes:
        consumers: Consumer groups.
    """

    consumers: list[_Consumer] | None = field(default=None, name="consumerDataSet")


class LockBody(Struct):
    """Lock and unlock of queues (41, 42).

    Attributes:
        group: Consumer group.
        queues: Queues, by their topics.
    """

    group: str | None = field(default=None, name="consumerGroup")
    queues: list[_Subscription] | None = field(default=None, name="mqSet")


class _Ack(Struct, gc=False):
    group: str | None = field(default=None, name="consumerGroup")
    topic: str | None = None
    group_letter: str | msgspec.UnsetType | None = field(default=msgspec.UNSET, name="c")
    topic_letter: str | msgspec.UnsetType | None = field(default=msgspec.UNSET, name="t")

    @property
    def names(self) -> tuple[str, str]:
        """Group and topic; the letters have precedence."""
        unset = msgspec.UNSET
        group = self.group if self.group_letter is unset else self.group_letter
        topic = self.topic if self.topic_letter is unset else self.topic_letter
        return group or "", topic or ""


class AckBody(Struct):
    """Acknowledgements (200151)."""

    acks: list[_Ack] | None = None


class AssignmentBody(Struct):
    """Query of an assignment (400)."""

    group: str | None = field(default=None, name="consumerGroup")
    topic: str | None = None


class DecisionBody(Struct):
    """Cancel, move, fire (9011 to 9013)."""

    topic: str | None = None
    ids: msgspec.Raw = field(default_factory=msgspec.Raw)
    keys: msgspec.Raw = field(default_factory=msgspec.Raw)
    handles: list[str] | None = None

    @property
    def names_messages(self) -> bool:
        """Whether the request has ids or keys of messages."""
        values = (bytes(each).translate(None, BLANKS) for each in (self.ids, self.keys))
        return not NOTHING.issuperset(values)


def decoded(body: bytes, kind: type[B]) -> B:
    """Return the names in a body; an empty body is an empty object.

    Raises:
        ValueError: The body is malformed.
    """
    try:
        return msgspec.json.decode(body or b"{}", type=kind)
    except RecursionError:
        raise ValueError("nested too deeply") from None
