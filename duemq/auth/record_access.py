"""Access to records that requests name by their offset: their topics are known only once read."""

from __future__ import annotations

from typing import Protocol

from delivery.plugin import Request
from duemq.auth.model import Action


class RecordAccess(Protocol):
    """Decides about the topics of records."""

    @property
    def version(self) -> int:
        """A number that changes with every change of what is allowed."""
        ...

    def check_record(self, request: Request, topic: str, *actions: Action) -> None:
        """Check whether the account of a request may do any of these with a topic.

        Raises:
            RequestError: It may not.
        """
        ...

    def account_may(self, account: str, address: str, topic: str, *actions: Action) -> bool:
        """Return whether an account, at an address, may do any of these with a topic now."""
        ...


class EveryRecord:
    """Without accounts, every record is open (a `RecordAccess`)."""

    version = 0

    def check_record(self, request: Request, topic: str, *actions: Action) -> None:
        """Do nothing."""

    def account_may(self, account: str, address: str, topic: str, *actions: Action) -> bool:
        """Return True."""
        return True
