"""The replica side of AutoSwitchHA against a master that is scripted."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from duemq.configuration.controller_config import EPOCH_FILE
from duemq.configuration.replication_config import ReplicationConfig
from duemq.replication.autoswitch_client import autoswitch_sessions
from duemq.replication.autoswitch_frames import (
    STATE_BYTES,
    Handshake,
    LogEndReport,
    LogTransfer,
    MasterHandshake,
    ReplicaFrames,
)
from duemq.replication.epoch_file import EpochFile, Epochs
from duemq.replication.ha_client import RETRY_MS, HaClient, HaState, Session
from duemq_common.clock import FakeClock
from duemq_common.errors import ReplicationFault
from message_store.layout import RECORD_AT, RECORD_HEAD_BYTES
from message_store.store import MessageStore
from tests.duemq.replication.test_ha_client import record_at
from tests.message_store.replication.test_raw_append import content, fill, log_of
from tests.support.replica_rig import ScriptedMaster, until
from tests.support.stores import open_store

ID = 7
CHUNK = 32_768


@dataclass
class Rig:
    """A master with a log of 400 messages, and a replica.

    Attributes:
        epochs: Those that the master answers.
        confirmed: Confirm offsets that the client passed on.
        truncations: Log offsets that it requests its owner to truncate to.
    """

    master: ScriptedMaster
    client: HaClient
    store: MessageStore
    file: EpochFile
    clock: FakeClock
    log: bytes
    handshakes: list[Handshake]
    confirmed: list[int]
    truncations: list[int]
    epochs: Epochs
    log_end: int

    async def answer_handshakes(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> int:
        """Answer the handshakes of a replica; return its first reported log end."""
        frames = ReplicaFrames()
        while True:
            for frame in frames.receive(await reader.readexactly(STATE_BYTES)):
                if isinstance(frame, LogEndReport):
                    return frame.log_end
                self.handshakes.append(frame)
                writer.write(MasterHandshake(self.log_end, self.epochs).encode())

    async def requested(self, offset: int) -> asyncio.StreamWriter:
        """Return the next connection once the replica requests the log from `offset` on."""
        writer = await self.master.connected.get()
        await self.master.reported(offset)
        return writer

    async def failed(self, why: str) -> None:
        """Return when the connection has ended for this reason; have the client connect again."""
        await until(lambda: why in self.client.failure)
        self.clock.advance(RETRY_MS)

    def transfers(self, start: int, end: int) -> bytes:
        """Return the log from `start` to `end` as a master sends it: never across an epoch."""
        data, at = b"", start
        while at < end:
            entry = self.epochs.covering(at)
            assert entry is not None
            stop = min(end, at + CHUNK, self.epochs.end_after(at))
            data += LogTransfer(at, stop - at, entry, at).encode() + self.log[at:stop]
            at = stop
        return data


Prepare = Callable[[MessageStore, EpochFile, bytes], None]


def with_replica(
    root: Path,
    work: Callable[[Rig], Awaitable[None]],
    *,
    learner: bool = False,
    prepare: Prepare = lambda store, file, log: None,
    **keys: object,
) -> None:
    """Run a master that answers handshakes, a client, and some work on both."""
    clock = FakeClock()

    async def main() -> None:
        async def read_report(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> int:
            return await rig.answer_handshakes(reader, writer)

        master = ScriptedMaster(read_report)
        server = await asyncio.start_server(master.serve, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        config = ReplicationConfig(
            role="SLAVE",
            ha_master_address=f"{host}:{port}",
            **keys,
        )
        with (
            open_store(root / "master", clock) as source,
            open_store(root / "replica", clock) as store,
        ):
            fill(source, 400)
            log, file = log_of(source), EpochFile(root / "replica" / EPOCH_FILE)
            prepare(store, file, log)
            confirmed: list[int] = []
            truncations: list[int] = []
            hello = Handshake(ID, config.sync_from_last_file, learner)
            sessions = autoswitch_sessions(store, file, hello, on_confirmed=confirmed.append)
            client = HaClient(store, config, clock, sessions, truncations.append)
            rig = Rig(
                master,
                client,
                store,
                file,
                clock,
                log,
                [],
                confirmed,
                truncations,
                Epochs.of([(1, 0), (3, record_at(log, 50)), (4, record_at(log, 200))]),
                len(log),
            )
            running = asyncio.ensure_future(client.run())
            try:
                await work(rig)
            finally:
                client.stop()
                await running
            if store.max_offset == source.max_offset and not store.min_offset:
                assert content(store) == content(source)
        server.close()

    asyncio.run(main())


def test_log_and_epochs_are_copied(tmp_path: Path) -> None:
    async def work(rig: Rig) -> None:
        writer = await rig.requested(0)
        assert rig.handshakes == [Handshake(ID, False, True)]
        writer.write(rig.transfers(0, len(rig.log)))
        await rig.master.reported(len(rig.log))
        assert (rig.client.state, rig.client.failure) == (HaState.TRANSFER, "")
        assert rig.client.master_offset == len(rig.log)
        assert rig.file.epochs == EpochFile(rig.file.path).epochs == rig.epochs
        last = rig.epochs.entries[-1]
        writer.write(LogTransfer(len(rig.log), 0, last, len(rig.log)).encode())
        await until(lambda: rig.confirmed[-1] == len(rig.log))
        rig.clock.advance(5_000)
        await rig.master.reported(len(rig.log))

    with_replica(tmp_path, work, learner=True)


def test_the_last_file_can_be_asked_for(tmp_path: Path) -> None:
    async def work(rig: Rig) -> None:
        writer = await rig.requested(0)
        assert rig.handshakes == [Handshake(ID, True, False)]
        writer.write(rig.transfers(1 << 16, len(rig.log)))
        await rig.master.reported(len(rig.log))
        assert rig.store.min_offset == 1 << 16
        assert rig.file.epochs == rig.epochs.since(1 << 16)

    with_replica(tmp_path, work, sync_from_last_file=True)


@pytest.mark.parametrize("number", [1, 50, 51, 200, 390])
def test_a_connection_continues_where_the_last_one_ended(tmp_path: Path, number: int) -> None:
    async def work(rig: Rig) -> None:
        end = record_at(rig.log, number)
        writer = await rig.requested(0)
        writer.write(rig.transfers(0, end + 20))  # a part of a record more
        await rig.master.reported(end)
        writer.close()
        await rig.failed("closed the connection")
        writer = await rig.requested(rig.store.last_record)
        writer.write(rig.transfers(rig.store.last_record, len(rig.log)))
        await rig.master.reported(len(rig.log))
        assert rig.file.epochs == rig.epochs

    with_replica(tmp_path, work)


def test_with_sync_flush_only_what_is_on_the_disk_is_acknowledged(tmp_path: Path) -> None:
    async def work(rig: Rig) -> None:
        object.__setattr__(rig.store.config, "flush_disk_type", "SYNC_FLUSH")
        writer = await rig.requested(0)
        writer.write(rig.transfers(0, len(rig.log)))
        await rig.master.reported(len(rig.log))
        assert rig.store.durable_offset == len(rig.log)

    with_replica(tmp_path, work)


def test_an_epoch_is_in_the_file_before_its_log_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(rig: Rig) -> None:
        begins = rig.epochs.entries[1].start_offset
        writer = await rig.requested(0)
        writer.write(rig.transfers(0, begins))
        await rig.master.reported(begins)
        replace = EpochFile.replace

        def refused(file: EpochFile, epochs: Epochs) -> None:
            raise OSError(28, "no space left")

        monkeypatch.setattr(EpochFile, "replace", refused)
        writer.write(rig.transfers(begins, len(rig.log)))
        await until(lambda: "no space" in rig.client.failure)
        assert rig.store.max_offset == begins
        monkeypatch.setattr(EpochFile, "replace", replace)
        await rig.failed("no space")
        writer = await rig.requested(rig.store.last_record)
        writer.write(rig.transfers(rig.store.last_record, len(rig.log)))
        await rig.master.reported(len(rig.log))

    with_replica(tmp_path, work)


def holding(records: int, epochs: list[tuple[int, int]]) -> Prepare:
    """Have the replica hold so many records of the master's log, with these epochs."""

    def prepare(store: MessageStore, file: EpochFile, log: bytes) -> None:
        end = record_at(log, records)
        assert store.append_raw(0, np.frombuffer(log[:end], np.uint8)) == end
        file.replace(Epochs.of(epochs))

    return prepare


@pytest.mark.parametrize("equal", [True, False])
def test_a_log_that_has_to_be_truncated_is_named_to_the_owner(tmp_path: Path, equal: bool) -> None:
    """Only if the master repeats the last record before that: epochs of groups are alike."""

    async def work(rig: Rig) -> None:
        fork, last, end = (record_at(rig.log, number) for number in (60, 59, 70))
        rig.epochs = Epochs.of([(1, 0), (2, fork)])
        if not equal:
            at = last + RECORD_AT.store_ms
            rig.log = rig.log[:at] + b"x" + rig.log[at + 1 :]
        for _ in range(2):  # the owner is called again until it has done that
            writer = await rig.requested(last)
            writer.write(rig.transfers(last, len(rig.log)))
            await rig.failed(
                f"truncated to offset {fork}" if equal else "differs from the master's"
            )
        assert rig.truncations == ([fork, fork] if equal else [])
        assert rig.store.max_offset == end
        assert rig.file.epochs == Epochs.of([(1, 0)])

    with_replica(tmp_path, work, prepare=holding(70, [(1, 0)]))


@pytest.mark.parametrize("equal", [True, False])
def test_bytes_that_the_master_does_not_have_are_not_confirmed(tmp_path: Path, equal: bool) -> None:
    """The master's confirm offset arrives before the record that is compared.

    Consumers of this replica would receive messages that the group has never confirmed.
    """
    with open_store(tmp_path) as store:
        fill(store, 70)
        log, file = log_of(store), EpochFile(tmp_path / EPOCH_FILE)
        last, fork = record_at(log, 59), record_at(log, 60)
        file.replace(Epochs.of([(1, 0), (2, fork)]))
        store.replicated.require(fork)
        sessions = autoswitch_sessions(
            store, file, Handshake(ID), on_confirmed=store.replicated.advance
        )

        async def opened() -> Session:
            return await sessions()

        session = asyncio.run(opened())
        master = Epochs.of([(1, 0), (3, fork)])
        session.stream.feed(memoryview(MasterHandshake(len(log), master).encode()))
        assert session.on_received() == LogEndReport(last).encode()
        record = log[last:fork] if equal else log[last : fork - 1] + b"x"
        head = LogTransfer(last, fork - last, master.entries[0], len(log)).encode()
        for byte in (head + record)[:-1]:
            session.stream.feed(memoryview(bytes([byte])))
            session.on_received()
        with pytest.raises(ReplicationFault, match="truncated" if equal else "differs"):
            session.stream.feed(memoryview(record[-1:]))
        assert store.confirm_offset == fork
        assert file.epochs == Epochs.of([(1, 0), (2, fork)])


def test_a_replica_whose_log_has_no_epochs_compares_its_last_record(tmp_path: Path) -> None:
    """It was a replica in DefaultHA."""

    async def work(rig: Rig) -> None:
        last = record_at(rig.log, 69)
        writer = await rig.requested(last)
        at = last + RECORD_AT.store_ms
        other = rig.log[:at] + b"x" + rig.log[at + 1 :]
        entry = rig.epochs.entries[1]
        writer.write(LogTransfer(last, 500, entry, 0).encode() + other[last : last + 500])
        await rig.failed("differs from the master's")
        assert rig.file.epochs == Epochs()
        writer = await rig.requested(last)
        writer.write(rig.transfers(last, len(rig.log)))
        await rig.master.reported(len(rig.log))
        assert rig.file.epochs == rig.epochs

    with_replica(tmp_path, work, prepare=holding(70, []))


@pytest.mark.parametrize(
    ("mine", "theirs", "why"),
    [
        ([(1, 0)], [(2, 0)], "no epoch in common"),
        ([(1, 0), (9, 10)], [(1, 0)], "a newer one was elected"),
        ([(1, 0)], [], "the master has no epochs"),
    ],
)
def test_a_master_of_another_log_is_named_and_tried_again(
    tmp_path: Path, mine: list[tuple[int, int]], theirs: list[tuple[int, int]], why: str
) -> None:
    async def work(rig: Rig) -> None:
        right, rig.epochs = rig.epochs, Epochs.of(theirs)
        end = rig.store.max_offset
        await rig.master.connected.get()
        await until(lambda: rig.client.failure)
        rig.file.replace(Epochs.of([(1, 0)]))
        rig.epochs = right
        await rig.failed(why)
        assert rig.store.max_offset == end
        assert rig.truncations == []
        writer = await rig.requested(record_at(rig.log, 39))
        writer.write(rig.transfers(record_at(rig.log, 39), len(rig.log)))
        await rig.master.reported(len(rig.log))

    with_replica(tmp_path, work, prepare=holding(40, mine))


def test_a_silent_master_is_left(tmp_path: Path) -> None:
    async def work(rig: Rig) -> None:
        await rig.master.reported(0)
        await until(lambda: "no response" in rig.client.failure)

    with_replica(tmp_path, work, idle_ms_max=1_000)


def test_a_damaged_body_is_asked_for_again(tmp_path: Path) -> None:
    async def work(rig: Rig) -> None:
        writer = await rig.requested(0)
        good = rig.log
        at = record_at(good, 20) + RECORD_HEAD_BYTES
        rig.log = good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :]
        writer.write(rig.transfers(0, len(rig.log)))
        rig.log = good
        await rig.failed("does not match its CRC")
        end = rig.store.max_offset
        assert end <= at
        start = max(rig.store.last_record, 0)
        writer = await rig.requested(start)
        writer.write(rig.transfers(start, len(rig.log)))
        await rig.master.reported(len(rig.log))

    with_replica(tmp_path, work)
