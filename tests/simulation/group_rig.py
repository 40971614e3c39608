"""Simulated group: three members, a controller and clients, each on its own machine.

    members      complete `MemberBroker`: service, replication, store, deliveries
    controller   model of Apache's controller (`ControllerModel`), behind the product's server
    clients      `GroupLoad`, over the product's client

One thread runs everything; `chance` decides the order of concurrent events. The files of a store
are real. A kill copies the files before it ends the process; a power cut also removes a part of the
unsynced data from that copy.
"""

from __future__ import annotations

import asyncio
import gc
import hashlib
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from duemq.broker.broker import Broker
from duemq.broker.member_broker import MemberBroker
from duemq.net.client import RemotingClient
from duemq.net.dispatcher import Dispatcher
from duemq.net.server import RemotingServer
from duemq.replication.confirmed_file import SUFFIX
from duemq.replication.role import ReplicationRole
from duemq_common.codes import RequestCode
from duemq_common.request import Request, Response
from tests.simulation import group_migration
from tests.simulation.network import LOOPBACK, Network, NetworkQuality, Timeline
from tests.simulation.power_cut import Loss, copy_files, lose
from tests.simulation.processes import Process, SimHost, replaced
from tests.simulation.rig import TIMERS
from tests.support.fake_controller import ControllerModel
from tests.support.loopback_broker import LEVELS, properties_of

GROUP: Final = "group"
NUMBERS: Final = (1, 2, 3)
CONTROLLER_PORT: Final = 9_878
LEVEL_TEXT: Final = "1s 2s 4s 8s 16s"
SCAN_US: Final = 500_000
STOP_US: Final = 60_000_000
STEPS_MAX: Final = 50_000_000
CODES: Final = (
    RequestCode.CONTROLLER_GET_METADATA_INFO,
    RequestCode.BROKER_HEARTBEAT,
    RequestCode.CONTROLLER_GET_NEXT_BROKER_ID,
    RequestCode.CONTROLLER_APPLY_BROKER_ID,
    RequestCode.CONTROLLER_REGISTER_BROKER,
    RequestCode.CONTROLLER_GET_REPLICA_INFO,
    RequestCode.CONTROLLER_ELECT_MASTER,
    RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET,
)
PROPERTIES: Final = {
    "brokerClusterName": "sim",
    "brokerName": GROUP,
    "enableControllerMode": "true",
    "controllerAddr": f"{LOOPBACK}:{CONTROLLER_PORT}",
    "controllerHeartBeatTimeoutMills": "3000",
    "brokerHeartbeatInterval": "500",
    "checkSyncStateSetPeriod": "1000",
    "syncControllerMetadataPeriod": "2000",
    "haSendHeartbeatInterval": "1000",
    "haHousekeepingInterval": "5000",
    "haMaxTimeSlaveNotCatchup": "3000",
    "brokerRole": "SYNC_MASTER",
    "allAckInSyncStateSet": "true",
    "slaveReadEnable": "true",
    "busyPollMicros": "0",  # the clock of a killed member stands still, and polls would not end
    "mappedFileSizeCommitLog": "65536",
    "mappedFileSizeConsumeQueue": "2000",
    "messageIndexEnable": "false",
    "messageDelayLevel": LEVEL_TEXT,
    "timerPrecisionMs": "100",
    "timerRollWindowSlot": "60",
    "mappedFileSizeTimerLog": "5200",
    "defaultTopicQueueNums": "2",
    "migrationLatenessTargetMs": "0",
}

PLUGINS: Final = [LEVELS, group_migration.MIGRATION, TIMERS]

KILLED: Final = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:unclosed transport:ResourceWarning"),
]
"""Pytest marks of tests with killed processes, which leave files open and coroutines pending."""


def port_of(number: int) -> int:
    """Return a member's port for clients."""
    return 11_000 + 10 * number


class Member:
    """Member of the group, across restarts of its process.

    Attributes:
        host: Machine of the member.
        process: Running process; None: no process is running.
        broker: `MemberBroker` of the process.
        opened: Broker of the newest role, which can still be starting or stopping.
        ended: Error with which the process ended; None: it did not.
        is_stopping: Whether a stop was requested.
        synced: Log offset up to which any process of the member has synced the log.
    """

    def __init__(self, rig: GroupRig, number: int, home: Path) -> None:
        self._rig, self.number, self._home = rig, number, home
        self.host = SimHost(rig.network, f"member{number}", rig.chance)
        self._start_count = 0
        self.root = home / "store0"
        self.process: Process | None = None
        self.broker: MemberBroker | None = None
        self.opened: Broker | None = None
        self.ended: str | None = None
        self.is_stopping = False
        self.synced = 0
        for port in (port_of(number), port_of(number) + 1):
            rig.network.owners[port] = self.host

    @property
    def address(self) -> str:
        return f"{LOOPBACK}:{port_of(self.number)}"

    @property
    def store(self) -> Any:
        """The open store; None if it is closed or no process is running."""
        store = getattr(self.opened, "store", None)
        flusher = getattr(store, "flusher", None)
        return None if flusher is None or flusher.is_stopping else store

    @property
    def serving(self) -> Any:
        """The serving broker; None during a role change or if no process is running."""
        return self.broker.runner.broker if self.broker is not None else None

    def start(self) -> None:
        """Start a process on the current files."""
        assert self.process is None
        self.host.is_up = True
        self.ended, self.is_stopping = None, False
        self.process = Process(self.host, self._rig.chance)
        self.process.start(self._main())
        self._rig.note(f"{self.host.name} starts")

    async def _main(self) -> None:
        own = {"listenPort": str(port_of(self.number))}
        properties = properties_of(self.root, **(PROPERTIES | self._rig.properties | own))
        self.broker = MemberBroker(properties, clock=self.host.clock, plugins=PLUGINS)
        runner = self.broker.runner
        new_broker = runner.new_broker

        def new(role: ReplicationRole) -> Broker:
            self.opened = new_broker(role)
            return self.opened

        runner.new_broker = new
        self.ended = await self.broker.run()

    def die(self, *, is_cut: bool) -> None:
        """Kill the process, or cut the power of its machine."""
        assert self.process is not None
        self._rig.note(f"{self.host.name} {'loses power' if is_cut else 'is killed'}")
        loss = Loss.of(self.store, self.synced) if is_cut else None
        self._start_count += 1
        old, self.root = self.root, self._home / f"store{self._start_count}"
        copy_files(old, self.root)
        self.end_process(is_quiet=is_cut)
        shutil.rmtree(old)
        if (confirmed := old.with_name(old.name + SUFFIX)).exists():
            confirmed.rename(self.root.with_name(self.root.name + SUFFIX))
        if is_cut:
            self.host.is_up = False
            self.host.boots += 1
        if loss is not None:
            lose(self.root, loss, self._rig.chance)

    def on_synced(self) -> None:
        """Update `synced` after a turn; a truncation takes effect when the store opens."""
        store = self.store
        if store is not None:
            self.synced = min(max(self.synced, store.durable_offset), store.max_offset)

    def end_process(self, *, is_quiet: bool) -> None:
        assert self.process is not None
        self.process.end(is_quiet=is_quiet)
        self.process = self.broker = self.opened = None

    def stop(self) -> None:
        """Request a clean stop; `GroupWorld` removes the process once it has stopped."""
        if self.broker is not None:
            self._rig.note(f"{self.host.name} is requested to stop")
            self.is_stopping = True
            self.broker.stop_for_signal("SIGTERM")


class Controller:
    """Controller; its state survives restarts, its heartbeats do not."""

    def __init__(self, rig: GroupRig) -> None:
        self._rig = rig
        self.host = SimHost(rig.network, "controller", rig.chance)
        self.process: Process | None = None
        self.model = ControllerModel(self.host.clock.steady_ms)
        self.model.leader_address = f"{LOOPBACK}:{CONTROLLER_PORT}"
        rig.network.owners[CONTROLLER_PORT] = self.host
        self._notices: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        assert self.process is None
        self.model.alive.clear()
        self.process = Process(self.host, self._rig.chance)
        self.process.start(self._main())

    def die(self) -> None:
        assert self.process is not None
        self._rig.note("the controller is killed")
        self.model.notified = lambda name: None
        self.process.end(is_quiet=False)
        self.process = None

    async def _main(self) -> None:
        dispatcher = Dispatcher(dict.fromkeys(CODES, self._response))
        self.model.notified = self._notify
        async with RemotingServer(dispatcher, clock=self.host.clock) as server:
            await server.start(LOOPBACK, 0, bound=self._bound())
            while True:
                await asyncio.sleep(SCAN_US / 1e6)
                self.model.scan()

    def _bound(self) -> Any:
        bound = self.host.new_socket()
        bound.bind((LOOPBACK, CONTROLLER_PORT))
        return bound

    def _response(self, request: Request) -> Response:
        peer: Any = request.peer
        if request.code == RequestCode.BROKER_HEARTBEAT and not getattr(peer, "closed", False):
            key = request.fields["brokerName"], int(request.fields["brokerId"])
            if key not in self.model.alive:
                peer.on_close(self.model.close)
        return self.model.response(request, peer)

    def designate(self, broker_id: int) -> None:
        """Elect a member on request, as mqadmin does."""
        if self.process is not None:
            self._rig.note(f"broker {broker_id} is elected by hand")
            self.process.loop.call_soon(self.model.designate, GROUP, broker_id)

    def _notify(self, name: str) -> None:
        loop = asyncio.get_running_loop()
        for address, _ in self.model.groups[name].members.values():
            task = loop.create_task(self._notify_one(address), name="notification")
            self._notices.add(task)
            task.add_done_callback(self._notices.discard)

    async def _notify_one(self, address: str) -> None:
        try:
            async with RemotingClient(address) as client:
                request = Request(RequestCode.NOTIFY_BROKER_ROLE_CHANGED, {})
                await client.call(request, timeout_s=3.0)
        except OSError:
            pass


class GroupRig:
    """Simulated machines, processes and network.

    Args:
        properties: Configuration of the members, in addition to PROPERTIES.
    Attributes:
        observers: Functions called with a member after each turn of its process.
        history: Events of machines and connections, with their times.
    """

    def __init__(self, seed: int, properties: dict[str, str]) -> None:
        self.chance = random.Random(seed)
        self.properties = properties
        self.timeline = Timeline()
        self.quality = NetworkQuality()
        self.network = Network(self.timeline, self.chance, self.quality)
        self.network.trace = self._trace
        self._hash = hashlib.blake2b(digest_size=16)
        self.history: list[str] = []
        self.turns = 0
        self.members = [Member(self, number, Path(str(number))) for number in NUMBERS]
        self.controller = Controller(self)
        self.observers: list[Callable[[Member], None]] = []
        self.clients: list[Process] = []

    # -- history --------------------------------------------------------------------------------

    def _trace(self, text: str) -> None:
        self._hash.update(b"%d %s\n" % (self.timeline.now_us, text.encode()))

    def note(self, text: str) -> None:
        """Add an event to trace and history."""
        self._trace(text)
        self.history.append(f"{self.timeline.now_us / 1e6:9.3f} {text}")

    @property
    def digest(self) -> str:
        """Return a hash of all network traffic and events so far."""
        return self._hash.hexdigest()

    # -- running --------------------------------------------------------------------------------

    def new_client(self, name: str) -> Process:
        process = Process(SimHost(self.network, name, self.chance), self.chance)
        self.clients.append(process)
        return process

    def _processes(self) -> Iterator[tuple[Process, Member | None]]:
        for member in self.members:
            if member.process is not None:
                yield member.process, member
        if self.controller.process is not None:
            yield self.controller.process, None
        for client in self.clients:
            yield client, None

    def run(self, duration_us: int, until: Callable[[], object] = lambda: False) -> bool:
        """Run for a simulated time; stop early and return True if `until()` becomes true."""
        end_us = self.timeline.now_us + duration_us
        for _ in range(STEPS_MAX):
            if until():
                return True
            if not self._step(end_us):
                return bool(until())
        raise AssertionError("too many steps")

    def _step(self, end_us: int) -> bool:
        """Run the next event or turn; return False if it is after `end_us`."""
        if self.timeline.run_due():
            return True
        now_us = self.timeline.now_us
        first_us, ready = end_us, list[tuple[Process, Member | None]]()
        for process, member in self._processes():
            at_us = process.next_us()
            if at_us is None:
                continue
            if at_us <= now_us:
                ready.append((process, member))
            first_us = min(first_us, at_us)
        if ready:
            self._turn(*self.chance.choice(ready))
            return True
        event_us = self.timeline.next_us
        if event_us is not None:
            first_us = min(first_us, event_us)
        if first_us >= end_us:
            self.timeline.now_us = end_us
            return False
        self.timeline.now_us = max(first_us, now_us)
        return True

    def _turn(self, process: Process, member: Member | None) -> None:
        self.turns += 1
        process.turn()
        if process.loop.failures:
            raise AssertionError(f"{process.host.name}: {process.loop.failures}")
        if member is not None:
            member.on_synced()
            for observe in self.observers:
                observe(member)
            if process.main is not None and process.main.done():
                self._ended(member)
        elif process.main is not None and process.main.done():
            process.main.result()

    def _ended(self, member: Member) -> None:
        """Remove a process that has ended."""
        assert member.process is not None
        assert member.process.main is not None
        member.process.main.result()
        assert member.ended == "", f"{member.host.name} has ended: {member.ended}"
        self.note(f"{member.host.name} has stopped")
        member.end_process(is_quiet=False)

    def stop_members(self) -> None:
        """Stop the members cleanly."""
        for member in self.members:
            member.stop()
        stopped = self.run(STOP_US, lambda: all(m.process is None for m in self.members))
        assert stopped, "the members do not stop"

    def end(self) -> None:
        """End all processes."""
        for process, _ in list(self._processes()):
            process.end(is_quiet=True)

    # -- views ----------------------------------------------------------------------------------

    @property
    def hosts(self) -> dict[str, SimHost]:
        found = [each.host for each in (*self.members, self.controller, *self.clients)]  # type: ignore[attr-defined]
        return {host.name: host for host in found}

    def master(self) -> Member | None:
        """Return the controller's master, if it serves as master."""
        group = self.controller.model.groups.get(GROUP)
        for member in self.members:
            broker, serving = member.broker, member.serving
            if group is None or broker is None or serving is None:
                continue
            role = broker.runner.role
            if not role.is_replica and role.epoch == group.epoch:
                return member
        return None


@contextmanager
def group_rig(home: Path, seed: int, properties: dict[str, str]) -> Iterator[GroupRig]:
    """Yield a group of which nothing is started; disable the garbage collector meanwhile."""
    with pytest.MonkeyPatch.context() as patch:
        replaced(patch)
        group_migration.replaced(patch)
        random.seed(seed)
        gc.collect()
        gc.disable()
        patch.chdir(home)  # relative paths: some responses contain paths
        rig = GroupRig(seed, properties)
        try:
            yield rig
        finally:
            rig.end()
            gc.enable()
