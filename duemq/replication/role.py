"""Role of a broker in its group, as a controller assigns it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MASTER_ID: Final = 0  # MixAll.MASTER_ID: the id that a master registers with, whatever its own


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """What a member of a group does until its next role.

    Attributes:
        own_id: Id of this broker at the controller; 1 is the first.
        epoch: Master epoch of this role; 0: there was no master yet.
        master_address: `host:port` that clients of the master connect to; empty: no master.
        master_ha_address: `host:port` of the master's replication port; empty: not known.
    """

    is_replica: bool
    own_id: int
    epoch: int = 0
    master_address: str = ""
    master_ha_address: str = ""

    @property
    def is_known(self) -> bool:
        """Whether the group has a master: before that, the broker does not register."""
        return self.epoch > 0

    @property
    def registered_id(self) -> int:
        """The id for name servers: a master's is 0."""
        return self.own_id if self.is_replica else MASTER_ID
