"""Our master and our replica in AutoSwitchHA, each with a store, without a controller."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from duemq.configuration.controller_config import EPOCH_FILE
from duemq.configuration.ha_server_config import HaServerConfig
from duemq.configuration.replication_config import ReplicationConfig
from duemq.replication.autoswitch_client import autoswitch_sessions
from duemq.replication.autoswitch_frames import Handshake, LogEndReport
from duemq.replication.controller.service import GroupService
from duemq.replication.epoch_file import EpochFile, Epochs
from duemq.replication.ha_client import RETRY_MS, HaClient
from duemq.replication.ha_server import HaServer
from duemq.replication.membership import Membership
from duemq.replication.own_log import record_before
from duemq.replication.replica_connection import CONFIRM_MS
from duemq.replication.role import ReplicationRole
from duemq.replication.sync_state_set import SyncStateSetReplicas
from duemq_common.clock import FakeClock
from duemq_common.topics import SCHEDULE_TOPIC
from message_store.replication.truncation import truncate_store
from message_store.store import MessageStore
from tests.message_store.replication.test_raw_append import content, fill, log_of
from tests.support.replica_rig import TURN_S_MAX, until
from tests.support.stores import open_store, put_one, small_config

MASTER_ID, REPLICA_ID, STRANGER_ID = 1, 2, 3
SYNC = ReplicationConfig(role="SYNC_MASTER")


class FakeService:
    """A group whose sync state set a test decides. It agrees with `propose` at once."""

    def __init__(self) -> None:
        self.required_ids = frozenset({MASTER_ID})
        self.propose: Callable[[], frozenset[int]] = frozenset

    def check_in_sync(self) -> None:
        self.required_ids = self.propose() | {MASTER_ID}

    def holds(self, epoch: int) -> bool:
        return True


@dataclass
class Joined:
    """Both stores, the client, and the address of the master."""

    master: MessageStore
    store: MessageStore
    client: HaClient
    address: tuple[str, int]


class Pair:
    """Both stores, and the epoch files of both."""

    def __init__(self, root: Path) -> None:
        self.root, self.clock = root, FakeClock()
        self.service = FakeService()
        self.truncations: list[int] = []
        self.server: HaServer | None = None

    def file(self, name: str) -> EpochFile:
        """Return the epoch file of a store."""
        return EpochFile(self.root / name / EPOCH_FILE)

    @asynccontextmanager
    async def master(self, store: MessageStore, epoch: int) -> AsyncIterator[str]:
        """Run the HA server of a store in an epoch; yield its address."""
        role = ReplicationRole(is_replica=False, own_id=MASTER_ID, epoch=epoch)
        member = Membership(
            role,
            EpochFile(store.root / EPOCH_FILE),
            cast(GroupService, self.service),
            lambda offset: None,
            is_learner=False,
            catch_up_ms_max=15_000,
        )
        member.begin(store)
        with socket.socket() as bound:
            bound.bind(("127.0.0.1", 0))
            bound.setblocking(False)
            server = HaServer(bound, store, SYNC, HaServerConfig, self.clock, member=member)
            in_sync = server.in_sync
            assert isinstance(in_sync, SyncStateSetReplicas)
            self.service.propose = lambda: in_sync.caught_up
            async with server.running():
                self.server = server
                yield f"127.0.0.1:{server.port}"

    @asynccontextmanager
    async def replica(self, store: MessageStore, address: str) -> AsyncIterator[HaClient]:
        """Run the HA client of a store."""
        config = ReplicationConfig(role="SLAVE", ha_master_address=address)
        store.require_replicas()
        sessions = autoswitch_sessions(
            store,
            EpochFile(store.root / EPOCH_FILE),
            Handshake(REPLICA_ID),
            on_confirmed=store.replicated.advance,
        )
        client = HaClient(store, config, self.clock, sessions, self.truncations.append)
        running = asyncio.ensure_future(client.run())
        try:
            yield client
        finally:
            client.stop()
            await running

    @asynccontextmanager
    async def joined(self) -> AsyncIterator[Joined]:
        """Run a master of 50 messages, and a replica that is in the sync state set."""
        with (
            open_store(self.root / "a", self.clock) as master,
            open_store(self.root / "b", self.clock) as store,
        ):
            fill(master, 50)
            async with self.master(master, 1) as address, self.replica(store, address) as client:
                await until(lambda: REPLICA_ID in self.service.required_ids)
                host, port = address.split(":")
                yield Joined(master, store, client, (host, int(port)))

    @property
    def failure(self) -> str:
        """Why the last connection ended at the master."""
        return self.server.failure if self.server is not None else ""


def run(work: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(cast(Any, work()), 4 * TURN_S_MAX))


def test_a_replica_joins_the_set_and_its_consumers_read_what_is_confirmed(tmp_path: Path) -> None:
    pair = Pair(tmp_path)

    async def work() -> None:
        with (
            open_store(tmp_path / "a", pair.clock) as master,
            open_store(tmp_path / "b", pair.clock) as store,
        ):
            fill(master, 100)
            pair.file("a").replace(Epochs.of([(1, 0)]))
            async with pair.master(master, 3) as address, pair.replica(store, address):
                assert master.confirm_offset == master.max_offset  # alone
                await until(lambda: REPLICA_ID in pair.service.required_ids)
                fill(master, 100, 100)
                assert master.confirm_offset < master.max_offset
                await until(lambda: master.confirm_offset == master.max_offset)
                assert log_of(store) == log_of(master)
                pair.clock.advance(CONFIRM_MS)  # much less than a heartbeat
                await until(lambda: store.confirm_offset == store.max_offset)
                assert store.readable_bounds("T", 0) == master.readable_bounds("T", 0)
                assert pair.file("b").epochs == pair.file("a").epochs
                assert len(pair.file("a").epochs.entries) == 2
            assert content(store) == content(master)

    run(work)


def test_consumers_of_a_replica_do_not_read_what_is_not_confirmed(tmp_path: Path) -> None:
    """Another member of the set lacks it."""
    pair = Pair(tmp_path)

    async def work() -> None:
        async with pair.joined() as joined:
            master, store = joined.master, joined.store
            confirmed = master.confirm_offset
            pair.service.required_ids |= {STRANGER_ID}
            fill(master, 50, 50)
            await until(lambda: store.max_offset == master.max_offset)
            pair.clock.advance(CONFIRM_MS)
            await until(lambda: store.confirm_offset == confirmed)
            assert store.readable_bounds("T", 0)[1] < store.queue_bounds("T", 0)[1]

    run(work)


def send_level(store: MessageStore) -> None:
    """Append a level message."""
    put_one(store, SCHEDULE_TOPIC, 2, properties={"DELAY": "3", "REAL_TOPIC": "T", "REAL_QID": "0"})


def change_owner(store: MessageStore) -> None:
    """Rename DELAY in the last record in place, as a migration does."""
    found = record_before(store, store.max_offset)
    assert found is not None
    assert found.data[found.letter_at] == ord("Y")
    with store.log.file_of(found.start).path.open("r+b") as file:
        file.seek(found.start + found.letter_at - store.log.file_of(found.start).base)
        file.write(b"y")


@pytest.mark.parametrize("renames", ["master", "replica"])
def test_a_replica_whose_last_record_changed_its_owner_continues(
    tmp_path: Path, renames: str
) -> None:
    pair = Pair(tmp_path)

    async def work() -> None:
        with (
            open_store(tmp_path / "a", pair.clock) as master,
            open_store(tmp_path / "b", pair.clock) as store,
        ):
            async with pair.master(master, 1) as address:
                send_level(master)
                async with pair.replica(store, address):
                    await until(lambda: store.max_offset == master.max_offset)
                change_owner(master if renames == "master" else store)
                fill(master, 5)
                async with pair.replica(store, address) as client:
                    await until(lambda: client.failure or store.max_offset == master.max_offset)
                    assert client.failure == ""

    run(work)


@pytest.mark.parametrize("common", [0, 1, 40, "level"])
def test_a_former_master_is_truncated_and_joins_again(tmp_path: Path, common: int | str) -> None:
    """Its log and the new master's have the same sizes after the fork.

    The last common record may be a level message that only the new master's timers own.
    """
    drained, common = common == "level", 40 if common == "level" else int(common)
    pair = Pair(tmp_path)

    async def work() -> None:
        with (
            open_store(tmp_path / "a", pair.clock) as master,
            open_store(tmp_path / "b", pair.clock) as store,
        ):
            async with pair.master(master, 1) as address, pair.replica(store, address):
                fill(master, common)
                if drained:
                    send_level(master)
                await until(lambda: REPLICA_ID in pair.service.required_ids)
                await until(lambda: store.max_offset == master.max_offset)
                pair.service.required_ids = frozenset({MASTER_ID, REPLICA_ID})
                fork = master.max_offset
            fill(master, 30, common)  # alone
        pair.clock.advance(1_000)
        with open_store(tmp_path / "b", pair.clock) as master:
            async with pair.master(master, 2) as address:
                assert master.max_offset == fork
                if drained:
                    change_owner(master)
                fill(master, 60, common)
                with open_store(tmp_path / "a", pair.clock) as store:
                    async with pair.replica(store, address):
                        await until(lambda: pair.truncations)
                assert pair.truncations == [fork]
                truncate_store(small_config(tmp_path / "a"), pair.clock, fork)
                pair.file("a").truncate_from(fork)
                with open_store(tmp_path / "a", pair.clock) as store:
                    async with pair.replica(store, address):
                        await until(lambda: store.max_offset == master.max_offset)
                        if not drained:  # the letters differ
                            assert content(store) == content(master)
                        assert pair.file("a").epochs == pair.file("b").epochs

    run(work)


def test_a_replica_with_another_file_size_names_the_key(tmp_path: Path) -> None:
    pair = Pair(tmp_path)

    async def work() -> None:
        with (
            open_store(tmp_path / "a", pair.clock) as master,
            open_store(tmp_path / "b", pair.clock, commitlog_file_bytes=1 << 15) as store,
        ):
            fill(master, 400)
            async with pair.master(master, 1) as address, pair.replica(store, address) as client:
                await until(lambda: "mappedFileSizeCommitLog" in client.failure)
                fill(master, 10, 400)
                assert master.confirm_offset == master.max_offset  # it never joined the set

    run(work)


def test_a_full_disk_at_the_replica_ends_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = Pair(tmp_path)

    def full(offset: int, data: object) -> int:
        raise OSError(28, "No space left on device")

    async def work() -> None:
        async with pair.joined() as joined:
            master, store = joined.master, joined.store
            await until(lambda: master.confirm_offset == master.max_offset)
            confirmed = master.confirm_offset
            pair.service.propose = lambda: frozenset({REPLICA_ID})  # the controller waits
            with monkeypatch.context() as patch:
                patch.setattr(store.raw, "append", full)
                fill(master, 50, 50)
                await until(lambda: "No space left" in joined.client.failure)
                assert master.confirm_offset == confirmed
            pair.clock.advance(RETRY_MS)
            await until(lambda: master.confirm_offset == master.max_offset)
            assert content(store) == content(master)

    run(work)


FORGED = {
    "two stores share one identity": [Handshake(MASTER_ID)],
    "before its handshake": [LogEndReport(0)],
    "acknowledgement beyond the log": [Handshake(STRANGER_ID), LogEndReport(1 << 40)],
    "after": [Handshake(STRANGER_ID), LogEndReport(100), LogEndReport(50)],
    "a second handshake": [Handshake(STRANGER_ID), Handshake(REPLICA_ID)],
}


@pytest.mark.parametrize("why", FORGED)
def test_a_hostile_replica_is_disconnected_and_the_others_go_on(tmp_path: Path, why: str) -> None:
    pair = Pair(tmp_path)

    async def work() -> None:
        async with pair.joined() as joined:
            reader, writer = await asyncio.open_connection(*joined.address)
            writer.write(b"".join(frame.encode() for frame in FORGED[why]))  # type: ignore[attr-defined]
            await reader.read()
            await until(lambda: why in pair.failure)
            fill(joined.master, 50, 50)
            await until(lambda: joined.master.confirm_offset == joined.master.max_offset)
            assert pair.service.required_ids == {MASTER_ID, REPLICA_ID}
            writer.close()

    run(work)


def test_a_forged_id_of_a_member_confirms_nothing_that_the_member_lacks(tmp_path: Path) -> None:
    """While the member is connected: its own report counts as well."""
    pair = Pair(tmp_path)

    async def work() -> None:
        async with pair.joined() as joined:
            master, store = joined.master, joined.store
            await until(lambda: master.confirm_offset == master.max_offset)
            confirmed = master.confirm_offset
            _, writer = await asyncio.open_connection(*joined.address)
            writer.write(Handshake(REPLICA_ID).encode() + LogEndReport(confirmed).encode())
            await until(lambda: pair.server is not None and len(pair.server.connections) == 2)
            fill(master, 50, 50)
            await until(lambda: store.max_offset == master.max_offset)
            assert master.confirm_offset == confirmed  # the other connection lacks it
            writer.close()
            await until(lambda: master.confirm_offset == master.max_offset)

    run(work)


def test_a_former_master_that_continues_confirms_and_replaces_nothing(tmp_path: Path) -> None:
    """Two masters: the one of the older epoch does not know of the other."""
    pair = Pair(tmp_path)

    async def work() -> None:
        with (
            open_store(tmp_path / "a", pair.clock) as former,
            open_store(tmp_path / "b", pair.clock) as other,
        ):
            async with pair.master(former, 1) as address:
                fill(former, 20)
                async with pair.replica(other, address):
                    await until(lambda: REPLICA_ID in pair.service.required_ids)
                    await until(lambda: former.confirm_offset == former.max_offset)
                    pair.service.propose = lambda: frozenset({REPLICA_ID})  # no answer any more
                confirmed = former.confirm_offset
                elected = Pair(tmp_path)
                async with elected.master(other, 2) as new_address:
                    fill(former, 5, 20)
                    fill(other, 9, 20)
                    written = log_of(other)
                    async with pair.replica(other, address) as client:
                        await until(lambda: "a newer one was elected" in client.failure)
                    assert log_of(other) == written
                    assert former.confirm_offset == confirmed
                    async with pair.replica(former, new_address):
                        await until(lambda: pair.truncations == [confirmed])

    run(work)


@pytest.mark.parametrize("hours", [-1.1, -1, 1, 1.1])
def test_clocks_that_differ_by_an_hour_stop_no_replication(tmp_path: Path, hours: float) -> None:
    """A time far from this clock is refused once, as damage, and taken if it comes again."""
    pair = Pair(tmp_path)
    masters = FakeClock(pair.clock.now_ms() + int(hours * 3_600_000))

    async def work() -> None:
        with (
            open_store(tmp_path / "a", masters) as master,
            open_store(tmp_path / "b", pair.clock) as store,
        ):
            async with pair.master(master, 1) as address, pair.replica(store, address) as client:
                for first in range(0, 30, 10):
                    fill(master, 10, first)
                    await until(lambda: client.failure or store.max_offset == master.max_offset)
                    assert hours > 1 or not client.failure
                    pair.clock.advance(RETRY_MS if client.failure else 0)
                    masters.advance(1_000)
                    await until(lambda: store.max_offset == master.max_offset)
                await until(lambda: master.confirm_offset == master.max_offset)
                assert content(store) == content(master)

    run(work)


def test_a_replica_in_default_ha_is_refused(tmp_path: Path) -> None:
    """Its master was switched to controller mode, or the other way round."""
    pair = Pair(tmp_path)

    async def work() -> None:
        async with pair.joined() as joined:
            reader, writer = await asyncio.open_connection(*joined.address)
            writer.write(bytes(8))
            assert await reader.read() == b""
            await until(lambda: "not in controller mode" in pair.failure)
            writer.close()

    run(work)


def test_a_replica_in_controller_mode_copies_nothing_of_a_master_in_default_ha(
    tmp_path: Path,
) -> None:
    pair = Pair(tmp_path)

    async def work() -> None:
        with (
            open_store(tmp_path / "a", pair.clock) as master,
            open_store(tmp_path / "b", pair.clock) as store,
            socket.socket() as bound,
        ):
            fill(master, 50)
            bound.bind(("127.0.0.1", 0))
            bound.setblocking(False)
            server = HaServer(bound, master, ReplicationConfig(), HaServerConfig, pair.clock)
            async with (
                server.running(),
                pair.replica(store, f"127.0.0.1:{server.port}") as client,
            ):
                for _ in range(2):
                    await until(lambda: client.failure)
                    pair.clock.advance(RETRY_MS)
                assert store.max_offset == 0

    run(work)
