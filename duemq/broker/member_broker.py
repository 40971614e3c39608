"""Broker in controller mode: a member of a group whose master Apache's controller elects.

    GroupService --become_master, become_replica--> RoleRunner --> one Broker at a time
         ^                                                              |
         +---- end of the log, confirm offset, replicas in sync --------+

Source: ReplicasManager
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from duemq.broker.broker import Broker
from duemq.broker.plugins import InstalledPlugin, installed_plugins
from duemq.broker.role_runner import RoleRunner
from duemq.configuration.settings import Settings, resolved, settings_from
from duemq.namesrv.name_servers import peer_client
from duemq.net.tls import load_tls
from duemq.replication.confirmed_file import ConfirmedFile
from duemq.replication.controller.identity import IdentityFiles
from duemq.replication.controller.requests import GroupName
from duemq.replication.controller.service import GroupService
from duemq.replication.epoch_file import EpochFile
from duemq.replication.ha_server import HaServer
from duemq.replication.membership import Membership
from duemq.replication.role import ReplicationRole
from duemq.replication.sync_state_set import SyncStateSetReplicas
from duemq_common.clock import Clock, SystemClock
from duemq_common.config import Properties
from duemq_common.errors import ConfigError
from message_store.kernels.preparation import Preparation
from message_store.replication.truncation import truncate_store

log = logging.getLogger(__name__)


class MemberBroker:
    """Broker with a role assigned by its group (a `GroupHost`).

    Args:
        properties, clock, plugins, config_file, read_again, kernels: See `Broker`.
        on_serving, on_closing: See `RoleRunner`.
    Attributes:
        runner: Runner of a broker in the current role.
        epochs: Epochs of the log.
    Raises:
        ConfigError: A value is invalid, or the store belongs to another group.
        CorruptStore: The identity or the epochs of the store are damaged.
    """

    def __init__(
        self,
        properties: Mapping[str, str],
        *,
        clock: Clock | None = None,
        plugins: Iterable[InstalledPlugin] | None = None,
        config_file: Path | None = None,
        read_again: Callable[[], Properties] | None = None,
        kernels: Preparation | None = None,
        on_serving: Callable[[Broker], None] = lambda broker: None,
        on_closing: Callable[[], None] = lambda: None,
    ) -> None:
        self.settings = settings = resolved(settings_from(properties))
        self._clock = clock or SystemClock()
        if plugins is None:  # reading them again at each change of role takes 50 ms
            plugins = installed_plugins(settings.broker.disabled_plugins)
        self._make = partial(
            Broker, clock=clock, plugins=plugins, config_file=config_file, kernels=kernels
        )
        self._properties, self._read_again = properties, read_again
        self.address = _fixed_address(settings)
        settings.store.root.mkdir(parents=True, exist_ok=True)
        self.epochs = EpochFile(settings.controller.epoch_file(settings.store.root))
        self._offsets = 0, 0
        self._durable: int | None = None  # durable part of `confirm_offset`; None: never opened
        self.service = GroupService(
            self,
            GroupName(settings.broker.cluster_name, settings.broker.broker_name),
            settings.controller,
            IdentityFiles(settings.controller.identity_file(settings.store.root)),
            self._clock,
            peer_client(settings.auth, load_tls(settings.tls).client),
        )
        identity = self.service.member.identity
        self._confirmed = ConfirmedFile(
            settings.store.root, identity if identity is not None and identity.is_assigned else None
        )
        standby = ReplicationRole(is_replica=True, own_id=self.service.member.broker_id)
        self.runner = RoleRunner(self._new_broker, standby, on_serving, on_closing)

    async def run(self) -> str:
        """Serve until a stop; return the failure, empty after a requested stop.

        Raises:
            DueMQError: A broker cannot start in its role.
        """
        async with self.service.running():
            return await self.runner.run()

    def stop_for_signal(self, name: str) -> None:
        """Request a stop because of a signal, without a failure."""
        self.runner.stop()

    def reload(self) -> None:
        """Reload the configuration (SIGHUP)."""
        if self.runner.broker is not None:
            self.runner.broker.reload()

    def _new_broker(self, role: ReplicationRole) -> Broker:
        properties = self._properties if self._read_again is None else self._read_again()
        membership = Membership(
            role,
            self.epochs,
            self.service,
            self._truncate,
            is_learner=self.settings.controller.is_learner,
            catch_up_ms_max=self.settings.controller.catch_up_ms_max,
        )
        return self._make(properties, read_again=self._read_again, membership=membership)

    def _truncate(self, offset: int) -> None:
        """Close the broker, truncate its log at `offset`, and restart it as a replica."""
        self.runner.restart(partial(self._truncate_closed, offset))

    def _truncate_closed(self, offset: int) -> None:
        since_ms = self._clock.steady_ms()
        truncate_store(
            self.settings.store, self._clock, offset, notice=lambda text: log.warning("%s", text)
        )
        self.epochs.truncate_from(offset)
        if (identity := self.service.member.identity) is not None:
            self._confirmed.truncate(identity, offset)
        log.info("the log ends at %d now (%d ms)", offset, self._clock.steady_ms() - since_ms)

    # -- `GroupHost` ------------------------------------------------------------------------------

    @property
    def max_offset(self) -> int:
        """End of the log; during a change of role, the last known one."""
        return self._offsets_now()[0]

    @property
    def confirm_offset(self) -> int:
        """Log offset up to which every required member has the log."""
        return self._offsets_now()[1]

    def _offsets_now(self) -> tuple[int, int]:
        if self.runner.broker is not None:
            store = self.runner.broker.store
            self._offsets = store.max_offset, store.confirm_offset
            self._durable = min(store.confirm_offset, store.durable_offset)
        return self._offsets

    @property
    def last_epoch(self) -> int:
        """Last epoch of the log; 0 without epochs."""
        return max(self.epochs.epochs.last_epoch, 0)

    @property
    def caught_up(self) -> frozenset[int] | None:
        """Ids of the replicas that qualify for the sync state set; None: no broker serves."""
        server = self._ha_server
        if server is None or not isinstance(server.in_sync, SyncStateSetReplicas):
            return None
        return server.in_sync.caught_up

    @property
    def election_refusal(self) -> str:
        """Reason why this broker must not be elected: its store is an old copy."""
        log_end = self.max_offset
        return self._confirmed.refusal(None if self._durable is None else log_end)

    async def record_confirmed(self) -> None:
        """Record the confirmed offset, unless the store is an old copy."""
        identity, offset = self.service.member.identity, self._durable
        if identity is not None and identity.is_assigned and offset is not None:
            await asyncio.to_thread(self._confirmed.record, identity, offset)

    @property
    def store_failed(self) -> bool:
        """Whether the store cannot be synced until it is opened again."""
        broker = self.runner.broker
        return broker is not None and broker.store.flusher.failure is not None

    def require(self, ids: frozenset[int]) -> None:
        """Require all these members for confirmations from now on."""
        if self._ha_server is not None:
            self._ha_server.in_sync.update()

    @property
    def _ha_server(self) -> HaServer | None:
        broker = self.runner.broker
        return broker.parts.ha_server if broker is not None else None

    async def become_master(self, epoch: int) -> None:
        """Become the master of an epoch; return when the broker serves."""
        await self._become(self._role(is_replica=False, epoch=epoch))

    async def become_replica(self, master_id: int, address: str, epoch: int) -> None:
        """Become a replica of a master; return when the broker serves.

        If the store could not be synced, the log after the last sync may not be on the disk, and
        later syncs do not write it: it is removed, and copied from the master again.
        """
        if (broker := self.runner.broker) is not None and self.store_failed:
            truncate = partial(self._truncate_closed, broker.store.flusher.durable)
            self.runner.restart(truncate, retry=True)
        role = self._role(is_replica=True, epoch=epoch)
        await self._become(replace(role, master_address=address))

    def _role(self, *, is_replica: bool, epoch: int) -> ReplicationRole:
        own_id = self.service.member.broker_id
        return ReplicationRole(is_replica=is_replica, own_id=own_id, epoch=epoch)

    async def _become(self, role: ReplicationRole) -> None:
        self.runner.assign(role)
        await self.runner.serves()


def _fixed_address(settings: Settings) -> str:
    """Return `host:port` for clients.

    Raises:
        ConfigError: The port is not fixed.
    """
    if not settings.broker.listen_port:
        reason = "a member of a group must keep its port when its role changes: set a fixed port"
        raise ConfigError("listenPort", "0", reason)
    return f"{settings.broker.broker_ip}:{settings.broker.listen_port}"
