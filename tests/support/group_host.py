"""Fake broker without a store, for tests of the group service."""

from __future__ import annotations

from duemq.replication.controller.requests import GroupName

GROUP = GroupName("DefaultCluster", "broker-a")


class FakeHost:
    """Fake broker without a store.

    Attributes:
        roles: Roles in order: ("master", epoch) or ("replica", master id, address, epoch).
        required: Ids of the replicas that must have every acknowledged byte.
        epochs: Epochs of the log; each master starts a new one.
        recorded: Number of calls of `record_confirmed`.
    """

    def __init__(self, address: str, *, last_epoch: int = 0) -> None:
        self.address = address
        self.max_offset = self.confirm_offset = 0
        self.caught_up: frozenset[int] | None = frozenset()
        self.election_refusal, self.recorded = "", 0
        self.store_failed = False
        self.roles: list[tuple[object, ...]] = []
        self.required: list[frozenset[int]] = []
        self.epochs: list[tuple[int, int]] = [(last_epoch, 0)] if last_epoch else []

    @property
    def last_epoch(self) -> int:
        return self.epochs[-1][0] if self.epochs else 0

    async def record_confirmed(self) -> None:
        self.recorded += 1

    def require(self, ids: frozenset[int]) -> None:
        self.required.append(ids)

    async def become_master(self, epoch: int) -> None:
        self.epochs.append((epoch, self.max_offset))
        self._record("master", epoch)

    async def become_replica(self, master_id: int, address: str, epoch: int) -> None:
        self._record("replica", master_id, address, epoch)

    def _record(self, *role: object) -> None:
        self.roles.append(role)
