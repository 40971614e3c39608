"""Access check for records requested by offset, whose topic is known only after reading."""

from __future__ import annotations

from typing import Protocol

from delivery.plugin import Request
from duemq.auth.model import Action


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

    def account_may(self, account: str, address: str, topic: str, *actions: Action) -> bool:
        """Return whether an account at an address has permission for any of the actions."""
        ...


class UnrestrictedAccess:
    """Record access without accounts: every record is allowed (a `RecordAccess`)."""

    version = 0

    def check_record(self, request: Request, topic: str, *actions: Action) -> None:
        """Do nothing."""

    def account_may(self, account: str, address: str, topic: str, *actions: Action) -> bool:
        """Return True."""
        return True
