"""Interface between the group service and the broker whose role it changes."""

from __future__ import annotations

from typing import Protocol


class GroupHost(Protocol):
    """Broker whose role the group service changes.

    Attributes:
        address: `host:port` that clients connect to; constant.
        max_offset: End of the log.
        confirm_offset: End of the log that every required member has.
        last_epoch: Last epoch in the epoch file; 0: none.
        election_refusal: Reason why this broker must not be elected, or an empty text.
        caught_up: Ids of the connected replicas that the sync state set should contain; no
            learners. None while the broker opens or closes: its replicas are not connected then.
        store_failed: Whether the store cannot be synced, and stores nothing until it is opened
            again. `become_replica` does that.
    """

    @property
    def address(self) -> str: ...
    @property
    def max_offset(self) -> int: ...
    @property
    def confirm_offset(self) -> int: ...
    @property
    def last_epoch(self) -> int: ...
    @property
    def election_refusal(self) -> str: ...
    @property
    def caught_up(self) -> frozenset[int] | None: ...
    @property
    def store_failed(self) -> bool: ...

    async def record_confirmed(self) -> None:
        """Record `confirm_offset`, by which an old copy of the store is recognized."""
        ...

    def require(self, ids: frozenset[int]) -> None:
        """Confirm from now on only log bytes that all these members have.

        Called before `become_master`, and when the set changes. `ids` includes the id of this
        broker. `confirm_offset` must not decrease.
        """
        ...

    async def become_master(self, epoch: int) -> None:
        """Make the broker the master of this epoch; return when it serves.

        It may acknowledge and deliver only while `GroupService.holds(epoch)` is true.
        """
        ...

    async def become_replica(self, master_id: int, address: str, epoch: int) -> None:
        """Make the broker a replica of this master; return when it copies, or tries to."""
        ...
