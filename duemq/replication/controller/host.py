"""What a group service needs of the broker whose role it decides."""

from __future__ import annotations

from typing import Protocol


class GroupHost(Protocol):
    """The broker whose role the group decides.

    Attributes:
        address: `host:port` that clients connect to; never changes.
        max_offset: End of the log.
        confirm_offset: End of what every required member has.
        last_epoch: Last epoch of the log, of the epoch file; 0: it has none.
        caught_up: Ids of the connected replicas that belong into the sync state set: those that
            have everything up to `confirm_offset` and no learners.
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
    def caught_up(self) -> frozenset[int]: ...

    def require(self, ids: frozenset[int]) -> None:
        """Confirm from now on only what all these members have; called before `become_master`.

        The own id is one of them. `confirm_offset` must not go back.
        """
        ...

    async def become_master(self, epoch: int) -> None:
        """Return when the broker serves as master of this epoch.

        It may acknowledge and deliver only while `GroupService.holds(epoch)`.
        """
        ...

    async def become_replica(self, master_id: int, address: str, epoch: int) -> None:
        """Return when the broker copies, or tries to copy, the log of this master."""
        ...
