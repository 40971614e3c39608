"""Access checks that need more than the header of a request.

record   requested by offset; its topic is known only after reading
cancel   of a timer that a message or a recall handle names; see `delayed_delivery.markers`
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from delayed_delivery.markers import target_of
from duemq.auth.model import Action
from duemq_common.request import Request


class RecordAccess(Protocol):
    """Interface of the access check for records."""

    @property
    def version(self) -> int:
        """Version number; changes with every change of accounts or permissions."""
        ...

    def check_record(self, request: Request, topic: str, *actions: Action) -> None:
        """Check that the account of a request has permission for any of the actions on a topic.

        Raises:
            RequestError: The permission is missing.
        """
        ...

    def check_cancel(self, request: Request, topic: str, *, sent_to: str) -> None:
        """Check that the account of a request may cancel timers of a topic; audit the cancel.

        Timers of the topic that the request is sent to are recalled with `Pub`, as in Apache's
        broker; those of any other topic are cancelled with `Update`.

        Raises:
            RequestError: The permission is missing.
        """
        ...

    def account_may(self, account: str, address: str, topic: str, *actions: Action) -> bool:
        """Return whether an account at an address has permission for any of the actions."""
        ...

    def may_publish(self, account: str, address: str) -> bool:
        """Return whether an account at an address may send to any topic."""
        ...


class UnrestrictedAccess:
    """Record access without accounts: every record is allowed (a `RecordAccess`)."""

    version = 0

    def check_record(self, request: Request, topic: str, *actions: Action) -> None:
        """Do nothing."""

    def check_cancel(self, request: Request, topic: str, *, sent_to: str) -> None:
        """Do nothing."""

    def account_may(self, account: str, address: str, topic: str, *actions: Action) -> bool:
        """Return True."""
        return True

    def may_publish(self, account: str, address: str) -> bool:
        """Return True."""
        return True


def check_marker(
    access: RecordAccess, request: Request, topic: str, properties: Mapping[str, str]
) -> None:
    """Check the permission for the timer that a message of a client cancels, if it cancels one.

    Args:
        topic: Topic to which the message is sent.

    Raises:
        RequestError: The permission is missing.
    """
    target = target_of(properties, topic)
    if target is not None:
        access.check_cancel(request, target.topic, sent_to=topic)


def cancel_actions(topic: str, sent_to: str) -> tuple[Action, ...]:
    """Return the actions of which one permits to cancel timers of a topic."""
    return (Action.PUB, Action.UPDATE) if topic == sent_to else (Action.UPDATE,)
