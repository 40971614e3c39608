"""The HA client against a master that is slow, wrong, or gone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from duemq.configuration.replication_config import ReplicationConfig
from duemq.replication.default_ha import default_sessions
from duemq.replication.ha_client import RETRY_MS, HaClient, HaState
from duemq.replication.layout import REPORT, TRANSFER
from duemq_common.clock import FakeClock
from message_store.layout import RECORD_AT
from message_store.store import MessageStore
from tests.message_store.replication.test_raw_append import content, fill, log_of
from tests.support.replica_rig import ScriptedMaster, until
from tests.support.stores import open_store


async def read_report(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> int:
    [offset] = REPORT.unpack(await reader.readexactly(REPORT.size))
    return int(offset)


def transfer(offset: int, data: bytes) -> bytes:
    return TRANSFER.pack(offset, len(data)) + data


Work = Callable[[ScriptedMaster, HaClient, MessageStore, FakeClock, bytes], Awaitable[None]]


def with_replica(root: Path, work: Work, *, first: int = 0, **keys: object) -> None:
    """Run a master with a log, an HA client, and some work on both."""
    clock = FakeClock()

    async def first_offset() -> int:
        return first

    async def main() -> None:
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
            sessions = default_sessions(
                store, first_offset, from_last_file=config.sync_from_last_file
            )
            client = HaClient(store, config, clock, sessions)
            running = asyncio.ensure_future(client.run())
            try:
                await work(master, client, store, clock, log_of(source))
            finally:
                client.stop()
                await running
            if store.max_offset == source.max_offset and not first:
                assert content(store) == content(source)
        server.close()

    asyncio.run(main())


def test_transfers_are_appended_and_acknowledged(tmp_path: Path) -> None:
    async def work(
        master: ScriptedMaster, client: HaClient, store: MessageStore, clock: FakeClock, log: bytes
    ) -> None:
        await master.reported(1)  # an empty log: everything behind its first byte
        writer = await master.connected.get()
        for at in range(1, len(log), 32_768):
            writer.write(transfer(at, log[at : at + 32_768]))
        await master.reported(len(log))
        assert (client.state, client.failure) == (HaState.TRANSFER, "")
        assert client.master_offset == len(log)
        writer.write(transfer(len(log), b""))  # a heartbeat
        clock.advance(5_000)
        await master.reported(len(log))

    with_replica(tmp_path, work)


def test_the_end_of_the_master_s_log_is_known_from_a_heartbeat_on_and_while_bytes_arrive(
    tmp_path: Path,
) -> None:
    """A transfer has more log after it, and a silent master may have stored more meanwhile."""

    async def work(
        master: ScriptedMaster, client: HaClient, store: MessageStore, clock: FakeClock, log: bytes
    ) -> None:
        assert not client.is_receiving
        await master.reported(1)
        writer = await master.connected.get()
        writer.write(transfer(1, log[1:]))
        await master.reported(len(log))
        assert (client.is_receiving, client.is_end_known) == (True, False)
        writer.write(transfer(len(log), b""))
        await until(lambda: client.is_end_known)
        clock.advance(2 * ReplicationConfig().heartbeat_ms)
        assert client.is_receiving
        clock.advance(1)
        assert not client.is_receiving
        writer.write(transfer(len(log), b""))
        await until(lambda: client.is_receiving)
        writer.close()
        await until(lambda: client.failure)
        assert (client.is_receiving, client.is_end_known) == (False, False)

    with_replica(tmp_path, work)


def test_records_of_a_transfer_that_breaks_off_are_kept(tmp_path: Path) -> None:
    async def work(
        master: ScriptedMaster, client: HaClient, store: MessageStore, clock: FakeClock, log: bytes
    ) -> None:
        await master.reported(1)
        writer = await master.connected.get()
        kept = record_at(log, 300)
        writer.write(transfer(1, log[1:])[: TRANSFER.size + kept])  # and a byte of the next record
        await writer.drain()
        await until(lambda: client.read_ms > 0)
        assert store.max_offset == 0  # a transfer is appended when it is complete
        writer.close()
        await until(lambda: client.failure != "")
        assert store.max_offset == kept

    with_replica(tmp_path, work)


@pytest.mark.parametrize("last_file", [False, True])
def test_an_empty_replica_begins_where_the_log_of_the_master_begins(
    tmp_path: Path, last_file: bool
) -> None:
    async def work(
        master: ScriptedMaster, client: HaClient, store: MessageStore, clock: FakeClock, log: bytes
    ) -> None:
        await master.reported(0 if last_file else 65_536)
        writer = await master.connected.get()
        writer.write(transfer(65_536, log[65_536:]))
        await master.reported(len(log))
        assert store.min_offset == 65_536

    with_replica(tmp_path, work, first=65_536, sync_from_last_file=last_file)


def test_with_sync_flush_only_what_is_on_the_disk_is_acknowledged(tmp_path: Path) -> None:
    async def work(
        master: ScriptedMaster, client: HaClient, store: MessageStore, clock: FakeClock, log: bytes
    ) -> None:
        object.__setattr__(store.config, "flush_disk_type", "SYNC_FLUSH")
        writer = await master.connected.get()
        writer.write(transfer(1, log[1:]))
        await master.reported(len(log))
        assert store.durable_offset == len(log)

    with_replica(tmp_path, work)


def test_with_sync_flush_a_replica_connects_only_with_a_synced_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first frame names the end of the log, which the master counts as acknowledged."""

    async def never_synced(end_offset: int, timeout_s: float) -> bool:
        return False

    async def work(
        master: ScriptedMaster, client: HaClient, store: MessageStore, clock: FakeClock, log: bytes
    ) -> None:
        object.__setattr__(store.config, "flush_disk_type", "SYNC_FLUSH")
        writer = await master.connected.get()
        monkeypatch.setattr(store.flusher, "wait", never_synced)
        writer.close()
        await until(lambda: client.failure)
        clock.advance(RETRY_MS)
        await until(lambda: "this log is not synced up to offset 0" in client.failure)
        assert master.connected.empty()

    with_replica(tmp_path, work)


@pytest.mark.parametrize("address", ["nowhere", "host:0", "host:1x", "broker..lan:1"])
def test_a_malformed_address_of_the_master_is_a_failure(tmp_path: Path, address: str) -> None:
    """A name server returns it; the broker ended."""

    async def first_offset() -> int:
        return 0

    async def main() -> None:
        clock = FakeClock()
        with open_store(tmp_path, clock) as store:
            sessions = default_sessions(store, first_offset, from_last_file=False)
            client = HaClient(store, ReplicationConfig(role="SLAVE"), clock, sessions)
            running = asyncio.ensure_future(client.run())
            client.follow(address)
            await until(lambda: client.failure or running.done())
            assert f"{address!r} is not host:port" in client.failure
            client.stop()
            await running

    asyncio.run(main())


WRONG = {
    "not Apache's HA protocol": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "the logs have diverged": transfer(7, b"xxxx"),
    "not a record": transfer(1, b"\0\0\x10" + b"no record" * 20),
    "closed the connection": b"",
}


@pytest.mark.parametrize("why", WRONG)
def test_a_wrong_master_is_named_and_tried_again(why: str, tmp_path: Path) -> None:
    async def work(
        master: ScriptedMaster, client: HaClient, store: MessageStore, clock: FakeClock, log: bytes
    ) -> None:
        writer = await master.connected.get()
        await master.reported(1)
        writer.write(WRONG[why])
        if not WRONG[why]:
            writer.close()
        await until(lambda: client.failure)
        assert why in client.failure
        assert store.max_offset == 0
        clock.advance(RETRY_MS)
        writer = await master.connected.get()
        await master.reported(1)
        writer.write(transfer(1, log[1:]))
        await master.reported(len(log))
        assert client.failure == ""

    with_replica(tmp_path, work)


def record_at(log: bytes, number: int) -> int:
    """Return where a record begins."""
    at = 0
    for _ in range(number):
        at += int.from_bytes(log[at : at + 4], "big")
    return at


@pytest.mark.parametrize("field", ["total_size", "magic", "body_crc", "phys_offset"])
@pytest.mark.parametrize("number", [20, 60])
def test_damaged_bytes_are_asked_for_again(field: str, number: int, tmp_path: Path) -> None:
    """Other fields of the header have no checksum."""

    async def work(
        master: ScriptedMaster, client: HaClient, store: MessageStore, clock: FakeClock, log: bytes
    ) -> None:
        writer = await master.connected.get()
        await master.reported(1)
        at = record_at(log, number) + getattr(RECORD_AT, field) + 3
        writer.write(transfer(1, log[1:at] + bytes([log[at] ^ 4]) + log[at + 1 :]))
        writer.write(transfer(len(log), b""))
        await until(lambda: client.failure)
        assert "record" in client.failure
        again = max(store.last_record, 1)  # the last record, or all after the first byte
        clock.advance(RETRY_MS)
        writer = await master.connected.get()
        await master.reported(again)
        writer.write(transfer(again, log[again:]))
        await master.reported(len(log))

    with_replica(tmp_path, work)


def test_a_silent_master_is_left(tmp_path: Path) -> None:
    async def work(
        master: ScriptedMaster, client: HaClient, store: MessageStore, clock: FakeClock, log: bytes
    ) -> None:
        await master.reported(1)
        await until(lambda: client.failure)
        assert "no response" in client.failure

    with_replica(tmp_path, work, idle_ms_max=1_000)


def test_a_master_is_not_silent_while_its_bytes_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a stall, the replica closed its connection and copied nothing for 5 s."""

    async def work(
        master: ScriptedMaster, client: HaClient, store: MessageStore, clock: FakeClock, log: bytes
    ) -> None:
        await master.reported(1)
        writer = await master.connected.get()
        writer.write(transfer(1, log[1:]))  # the socket has it at once
        loop, stalled_s = asyncio.get_running_loop(), ReplicationConfig().idle_ms_max / 1_000
        time_s = loop.time
        monkeypatch.setattr(loop, "time", lambda: time_s() + stalled_s)
        await until(lambda: client.failure or store.max_offset == len(log))
        assert client.failure == ""

    with_replica(tmp_path, work)


@pytest.mark.parametrize("what", ["another log", "a shorter log", "the same log"])
def test_the_last_record_is_compared(what: str, tmp_path: Path) -> None:
    """Another log whose records have the same sizes would continue this one without a gap."""

    async def work(
        master: ScriptedMaster, client: HaClient, store: MessageStore, clock: FakeClock, log: bytes
    ) -> None:
        end = record_at(log, 60)
        writer = await master.connected.get()
        writer.write(transfer(1, log[1:end]))
        await master.reported(end)
        writer.close()
        await until(lambda: client.failure)
        clock.advance(RETRY_MS)
        writer = await master.connected.get()
        last = store.last_record
        await master.reported(last)
        if what == "a shorter log":
            writer.write(transfer(last, b""))
        else:
            flip = b"\1" if what == "another log" else b"\0"
            at = last + RECORD_AT.store_ms
            other = log[last:at] + bytes([log[at] ^ flip[0]]) + log[at + 1 :]
            writer.write(transfer(last, other[:30]) + transfer(last + 30, other[30:]))
        if what == "the same log":
            await master.reported(len(log))
        else:
            await until(lambda: "diverged" in client.failure)
            assert store.max_offset == end
            assert master.reports.empty()

    with_replica(tmp_path, work)


def test_an_equal_log_is_reported_without_new_records(tmp_path: Path) -> None:
    async def work(
        master: ScriptedMaster, client: HaClient, store: MessageStore, clock: FakeClock, log: bytes
    ) -> None:
        writer = await master.connected.get()
        writer.write(transfer(1, log[1:]))
        await master.reported(len(log))
        writer.close()
        await until(lambda: client.failure)
        clock.advance(RETRY_MS)
        writer = await master.connected.get()
        await master.reported(store.last_record)
        writer.write(transfer(store.last_record, log[store.last_record :]))
        await master.reported(len(log))

    with_replica(tmp_path, work)
