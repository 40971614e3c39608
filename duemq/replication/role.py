"""Role of a broker in its group, as a controller assigns it."""

from __future__ import annotations

from dataclasses import replace

from msgspec import Struct

from duemq.configuration.settings import Settings
from duemq_common.broker_ids import MASTER_ID


class ReplicationRole(Struct, frozen=True, kw_only=True):
    """Role of a member of a group: master or replica, in one master epoch.

    Attributes:
        is_replica: Whether the broker copies the log of a master.
        own_id: Id of this broker at the controller, 1 or more.
        epoch: Master epoch of this role; 0: no master has been elected.
        master_address: `host:port` that clients of the master connect to; empty: no master.
    """

    is_replica: bool
    own_id: int
    epoch: int = 0
    master_address: str = ""

    @property
    def is_known(self) -> bool:
        """Whether a master has been elected; until then the broker does not register."""
        return self.epoch > 0

    @property
    def registered_id(self) -> int:
        """Id for registration with name servers; 0 for a master."""
        return self.own_id if self.is_replica else MASTER_ID

    def applied_to(self, settings: Settings) -> Settings:
        """Return the settings of a broker in this role."""
        return replace(
            settings,
            broker=replace(settings.broker, broker_id=self.registered_id),
            replication=replace(
                settings.replication, role="SLAVE" if self.is_replica else "SYNC_MASTER"
            ),
        )

    def continues(self, former: ReplicationRole) -> bool:
        """Return whether only the epoch differs: a master, or a replica of the same master."""
        same = self.is_replica == former.is_replica and self.master_address == former.master_address
        return same and (not self.is_replica or bool(self.master_address))
