"""Frames of AutoSwitchHA in both directions, in any pieces; what cannot be is refused."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from duemq.replication.autoswitch_frames import (
    AutoSwitchStream,
    Handshake,
    LogEndReport,
    LogTransfer,
    MasterHandshake,
    OwnLog,
    ReplicaFrames,
    TruncationNeeded,
)
from duemq.replication.epoch_file import ENTRIES_KEPT, EPOCH_MAX, EpochEntry, Epochs
from duemq.replication.layout import (
    EPOCH,
    EPOCH_REPORT,
    EPOCH_TRANSFER,
    HANDSHAKE_REQUEST,
    MASTER_HANDSHAKE,
)
from duemq.replication.log_stream import HEARTBEATS_MAX, TRANSFER_BYTES_MAX
from duemq.replication.own_log import OwnRecord
from duemq_common.broker_ids import BROKER_ID_MAX
from duemq_common.errors import ReplicationFault

EPOCHS = Epochs.of([(1, 0), (5, 6_300), (9, 18_930)])
# Apache 5.3.3 as master: its answer, and the heads of transfers of the same connection.
APACHE_HANDSHAKE = bytes.fromhex(
    "0000000100000024000000000000628e00000009"
    "000000010000000000000000"
    "00000005000000000000189c"
    "0000000900000000000049f2"
)
APACHE_HEAD = bytes.fromhex(
    "000000020000189c000000000000000000000005000000000000189c000000000000628e"
)
APACHE_EARLY_HEARTBEAT = bytes.fromhex(
    "0000000200000000ffffffffffffffff0000000100000000000000000000000000000000"
)


def test_bytes_are_apaches() -> None:
    assert MasterHandshake(25_230, EPOCHS).encode() == APACHE_HANDSHAKE
    head = LogTransfer(0, 6_300, EpochEntry(5, 6_300), 25_230)
    assert head.encode() == APACHE_HEAD
    heartbeat = LogTransfer(-1, 0, EpochEntry(1, 0), 0)
    assert heartbeat.encode() == APACHE_EARLY_HEARTBEAT


def pieces(data: bytes, cuts: list[int]) -> Iterator[bytes]:
    """Yield consecutive pieces of data, cut at these places modulo its size."""
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    for start, end in pairwise(places):
        yield data[start:end]


CUTS = st.lists(st.integers(0, 1 << 20), max_size=40)
REPLICA_FRAMES = st.one_of(
    st.builds(Handshake, st.integers(1, (1 << 31) - 1), st.booleans(), st.booleans()),
    st.builds(LogEndReport, st.integers(0, (1 << 63) - 1)),
)


@given(st.lists(REPLICA_FRAMES, max_size=20), CUTS)
def test_a_master_reads_what_replicas_write(
    frames: list[Handshake | LogEndReport], cuts: list[int]
) -> None:
    reader = ReplicaFrames()
    data = b"".join(frame.encode() for frame in frames)
    found = [frame for piece in pieces(data, cuts) for frame in reader.receive(piece)]
    assert found == frames


@given(
    st.lists(
        st.tuples(st.integers(1, 3), st.lists(st.binary(min_size=1, max_size=60))), min_size=1
    ),
    st.booleans(),
    CUTS,
)
def test_a_replica_reads_what_masters_write(
    written: list[tuple[int, list[bytes]]], early: bool, cuts: list[int]
) -> None:
    """Epochs with the log that each master wrote, in transfers; with a heartbeat after each."""
    entries, frames, log = list[Any](), list[Any](), b""
    for more, parts in written:
        epoch = (entries[-1].epoch if entries else 0) + more
        entries.append(EpochEntry(epoch, len(log)))
        for part in parts:
            frames.append(LogTransfer(len(log), len(part), entries[-1], len(log)).encode() + part)
            log += part
        frames.append(LogTransfer(len(log), 0, entries[-1], len(log)).encode())
    before = APACHE_EARLY_HEARTBEAT if early and entries[0].epoch == 1 else b""
    end = 0 if before else len(log)
    data = MasterHandshake(end, Epochs(tuple(entries))).encode() + before + b"".join(frames)
    stream = empty_replica()
    sent = b""
    for piece in pieces(data, cuts):
        stream.feed(memoryview(piece))
        sent += stream.data_to_send()
    assert sent == LogEndReport(0).encode()
    assert stream.pending.tobytes() == log
    assert stream.confirm_offset == stream.master_offset == len(log)
    # an epoch in which nothing was written may only be known to the master
    assert set(stream.epochs.entries) <= set(entries)
    for at in range(len(log)):
        assert stream.epochs.covering(at) == Epochs(tuple(entries)).covering(at)


def test_an_epoch_may_be_named_with_the_end_of_the_one_before() -> None:
    """As Apache's master does; the epochs before it are known from its answer."""
    stream = empty_replica()
    stream.feed(memoryview(APACHE_HANDSHAKE + APACHE_HEAD + b"x" * 6_300))
    assert stream.epochs == EPOCHS.before(6_301)
    assert stream.confirm_offset == stream.master_offset == 25_230


def test_a_log_may_begin_before_its_first_epoch() -> None:
    """It was written before the broker was in controller mode."""
    stream = empty_replica()
    entry = EpochEntry(2, 500)
    stream.feed(memoryview(MasterHandshake(600, Epochs((entry,))).encode()))
    for offset in (100, 300, 500):
        stream.feed(memoryview(LogTransfer(offset, 200, entry, 0).encode() + bytes(200)))
    assert (stream.offset, stream.pending.size) == (100, 600)
    assert stream.epochs.entries == (entry,)


# -- where transfers begin ------------------------------------------------------------------------

RECORD = b"a record"


def own(end: int, entries: list[tuple[int, int]], *, last: int | None = -1) -> OwnLog:
    """Return a log of this end, in which `RECORD` ends where it is requested.

    Args:
        last: Where the record before the end ends instead; None: there is no record.
    """

    def record_before(offset: int) -> OwnRecord | None:
        at = last if last is None or last >= 0 else offset
        return None if at is None else OwnRecord(at - len(RECORD), RECORD)

    return OwnLog(end, Epochs.of(entries), record_before)


def empty_replica() -> AutoSwitchStream:
    """Return the stream of a replica without a log."""
    return AutoSwitchStream(own(0, [], last=None))


MINE = [(1, 0), (2, 500), (4, 800)]


@pytest.mark.parametrize(
    ("log", "theirs", "their_end", "requested", "left"),
    [
        (own(0, []), [(3, 100)], 900, 0, []),
        (own(0, []), [(1, 0), (2, 0), (3, 100)], 900, 0, [(1, 0), (2, 0)]),
        (own(0, [(1, 0)]), [(2, 0)], 900, 0, [(2, 0)]),
        (own(950, MINE), [(1, 0), (2, 500), (4, 800)], 950, 942, MINE),
        (own(950, MINE), [(4, 800), (5, 950)], 990, 942, [*MINE, (5, 950)]),
        (own(800, MINE), MINE, 900, 792, MINE),
        (own(800, MINE), [(1, 0), (2, 500), (5, 800)], 900, 792, [*MINE[:2], (5, 800)]),
        (own(800, MINE, last=700), MINE, 900, 800, MINE),  # its file is full
        (own(800, MINE, last=None), MINE, 900, 800, MINE),  # it cannot be read
        (own(800, []), MINE, 900, 792, MINE),
    ],
)
def test_transfers_begin_with_the_last_record(
    log: OwnLog,
    theirs: list[tuple[int, int]],
    their_end: int,
    requested: int,
    left: list[tuple[int, int]],
) -> None:
    stream = AutoSwitchStream(log)
    stream.feed(memoryview(MasterHandshake(their_end, Epochs.of(theirs)).encode()))
    assert stream.data_to_send() == LogEndReport(requested).encode()
    assert stream.epochs == Epochs.of(left)
    assert stream.is_compared == (requested in (0, log.end))
    assert stream.master_offset == their_end


@pytest.mark.parametrize("equal", [True, False])
def test_a_log_is_truncated_if_what_remains_is_the_masters(equal: bool) -> None:
    stream = AutoSwitchStream(own(950, MINE))
    stream.feed(memoryview(MasterHandshake(990, Epochs.of([(1, 0), (2, 500), (5, 700)])).encode()))
    assert stream.data_to_send() == LogEndReport(700 - len(RECORD)).encode()
    head = LogTransfer(692, len(RECORD), EpochEntry(5, 700), 0).encode()
    if equal:
        with pytest.raises(TruncationNeeded, match="truncated to offset 700") as raised:
            stream.feed(memoryview(head + RECORD))
        assert raised.value.offset == 700
    else:
        with pytest.raises(ReplicationFault, match=r"differs from the master's.*diverged") as fault:
            stream.feed(memoryview(head + RECORD.upper()))
        assert not isinstance(fault.value, TruncationNeeded)


def test_a_log_of_which_the_master_has_nothing_is_emptied_for_a_newer_epoch_only() -> None:
    with pytest.raises(TruncationNeeded, match="to offset 0"):
        answered(own(100, [(1, 0)], last=None), 90, [(1, 0), (2, 0)])
    with pytest.raises(ReplicationFault, match="no record of this log"):
        answered(own(100, [(1, 0)], last=None), 0, [(1, 0)])


def test_a_log_that_was_never_confirmed_is_emptied_for_a_newer_master_without_its_epochs() -> None:
    """Its master was elected before any replica had a part of the log, and lost to one of these."""
    log = replace(own(950, [(1, 0)]), is_unconfirmed=True)
    with pytest.raises(TruncationNeeded, match="to offset 0"):
        answered(log, 2_000, [(5, 0), (10, 700)])
    for other, entries in ((log, [(1, 100)]), (replace(log, begin=600), [(5, 0)])):
        with pytest.raises(ReplicationFault, match="no epoch in common") as raised:
            answered(other, 2_000, entries)
        assert not isinstance(raised.value, TruncationNeeded)


def answered(log: OwnLog, end: int, entries: list[tuple[int, int]]) -> AutoSwitchStream:
    """Return a stream after the answer of a master."""
    stream = AutoSwitchStream(log)
    stream.feed(memoryview(MasterHandshake(end, Epochs.of(entries)).encode()))
    return stream


@pytest.mark.parametrize(
    ("log", "entries", "end", "why"),
    [
        (own(950, MINE), [(3, 100), (6, 200)], 990, "no epoch in common"),
        (own(950, [(1, 0)]), [(1, 100)], 990, "no epoch in common"),
        (own(950, MINE), [(1, 0), (3, 500)], 990, "has epoch 3, this log has epoch 4"),
        (own(950, []), [(1, 0)], 940, "no epochs to compare"),
        (own(950, [], last=None), [(1, 0)], 990, "no epochs to compare"),
        (own(950, [], last=900), [(1, 0)], 990, "no epochs to compare"),
        (replace(own(950, MINE), begin=600), [(1, 0), (2, 500), (5, 550)], 990, "begins at 600"),
    ],
)
def test_another_log_is_refused(
    log: OwnLog, entries: list[tuple[int, int]], end: int, why: str
) -> None:
    with pytest.raises(ReplicationFault, match=why) as raised:
        answered(log, end, entries)
    assert not isinstance(raised.value, TruncationNeeded)


def test_a_controller_may_know_a_newer_epoch_than_the_masters_file() -> None:
    """Apache's file lacks an epoch that began where the one before it did."""
    log = replace(own(950, MINE), master_epoch=5)
    assert answered(log, 990, [(1, 0), (3, 500)]).data_to_send() == LogEndReport(492).encode()


def test_a_master_reads_the_ids_of_replicas_up_to_the_limit() -> None:
    for replica in (Handshake(1), Handshake(BROKER_ID_MAX)):
        assert ReplicaFrames().receive(replica.encode()) == [replica]
    with pytest.raises(ReplicationFault, match="has the id 2147483648"):
        ReplicaFrames().receive(Handshake(BROKER_ID_MAX + 1).encode())


# -- bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"HTTP/1.1", "state 1213486160: this is not"),
        (bytes(8), "state 0.*not in controller mode"),  # a report of DefaultHA
        (HANDSHAKE_REQUEST.pack(1, 0, 0, 0), "has the id 0"),
        (HANDSHAKE_REQUEST.pack(1, 0, 0, -1), "has the id -1"),
        (HANDSHAKE_REQUEST.pack(1, 0, 0, 15 << 32), "has the id 64424509440"),  # of 5.0
        (EPOCH_REPORT.pack(2, -1), "the negative log offset -1"),
        (EPOCH_REPORT.pack(3, 5), "state 3"),
    ],
)
def test_a_master_refuses_other_frames(data: bytes, why: str) -> None:
    with pytest.raises(ReplicationFault, match=why):
        ReplicaFrames().receive(data)


@given(st.binary(max_size=200), CUTS)
def test_a_master_reads_any_bytes_as_frames_or_refuses_them(data: bytes, cuts: list[int]) -> None:
    frames = ReplicaFrames()
    try:
        for piece in pieces(data, cuts):
            frames.receive(piece)
    except ReplicationFault:
        pass


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "state 1213486160 instead of 1"),
        (MASTER_HANDSHAKE.pack(0, 0, 1_000, 0), "state 0 instead of 1.*controller mode"),
        (MASTER_HANDSHAKE.pack(1, 0, 1_000, -1), "no epochs: it was not elected"),
        (MASTER_HANDSHAKE.pack(1, 13, 0, 1), "13 bytes of epochs"),
        (MASTER_HANDSHAKE.pack(1, -12, 0, 1), "-12 bytes of epochs"),
        (MASTER_HANDSHAKE.pack(1, 12 << 20, 0, 1), "bytes of epochs"),
        (MASTER_HANDSHAKE.pack(1, 12, -5, 1), "log end -5"),
        (MASTER_HANDSHAKE.pack(1, 12, 9, 1) + EPOCH.pack(-1, 0), "out of range"),
        (MASTER_HANDSHAKE.pack(1, 12, 9, 1) + EPOCH.pack(1, -1), "out of range"),
        (MASTER_HANDSHAKE.pack(1, 24, 9, 1) + EPOCH.pack(2, 0) + EPOCH.pack(1, 5), "follows"),
    ],
)
def test_a_replica_refuses_another_answer(data: bytes, why: str) -> None:
    with pytest.raises(ReplicationFault, match=why):
        empty_replica().feed(memoryview(data))


@pytest.mark.parametrize(
    ("head", "why"),
    [
        ((1, 0, 942, 4, 800, 0), "state 1 instead of 2"),
        ((2, -1, 942, 4, 800, 0), "transfer of -1 bytes"),
        ((2, 65 << 20, 942, 4, 800, 0), "transfer of 68157440 bytes"),
        ((2, 8, -1, 4, 800, 0), "log offset -1"),
        ((2, 8, 942, -1, 800, 0), "epoch -1"),
        ((2, 8, 942, 4, -1, 0), "epoch 4 at -1"),
        ((2, 8, 950, 4, 800, 0), "sends log offset 950"),
        ((2, 8, 942, 4, 801, 0), "belongs to epoch 4"),
        ((2, 8, 942, 2, 500, 0), "belongs to epoch 4"),  # a master of an older epoch
        ((2, 8, 942, 5, 900, 0), "belongs to epoch 4"),  # part of it would be another epoch's
        ((2, 0, 942, 4, 800, 0), "ends before the last record"),
    ],
)
def test_a_replica_refuses_other_transfers(head: tuple[int, ...], why: str) -> None:
    stream = answered(own(950, MINE), 990, MINE)
    with pytest.raises(ReplicationFault, match=why):
        stream.feed(memoryview(EPOCH_TRANSFER.pack(*head)))


@pytest.mark.parametrize(
    ("offset", "size", "entry"),
    [
        (-1, 0, EpochEntry(0, 0)),  # of Apache's master while its log is empty
        (0, 1, EpochEntry(0, 0)),
        (0, TRANSFER_BYTES_MAX, EpochEntry(0, 0)),
        (0, 1, EpochEntry(EPOCH_MAX, 0)),
    ],
)
def test_a_replica_reads_transfers_at_each_bound(offset: int, size: int, entry: EpochEntry) -> None:
    stream = answered(own(0, [], last=None), 0, [entry])
    stream.feed(memoryview(LogTransfer(offset, size, entry, 0).encode() + bytes(min(size, 1))))
    assert stream.pending.size == min(size, 1)
    assert stream.epochs.entries == (entry,)


@given(st.binary(max_size=400), CUTS)
def test_a_replica_reads_any_bytes_as_frames_or_refuses_them(data: bytes, cuts: list[int]) -> None:
    for before in (b"", MasterHandshake(990, Epochs.of(MINE)).encode()):
        stream = empty_replica()
        try:
            for piece in pieces(before + data, cuts):
                stream.feed(memoryview(piece))
        except ReplicationFault:
            pass
        assert stream.pending.size <= len(data)


def test_a_master_without_the_log_that_is_missing_here_is_noticed() -> None:
    stream = answered(own(950, MINE), 990, MINE)
    stream.feed(memoryview(LogTransfer(942, 8, EpochEntry(4, 800), 0).encode() + RECORD))
    heartbeat = memoryview(LogTransfer(950, 0, EpochEntry(4, 800), 0).encode())
    for _ in range(HEARTBEATS_MAX - 1):
        stream.feed(heartbeat)
    with pytest.raises(ReplicationFault, match="expired"):
        stream.feed(heartbeat)


def test_a_handshake_has_no_more_epochs_than_apaches_replicas_expect() -> None:
    epochs = Epochs.of([(number, number) for number in range(ENTRIES_KEPT + 3)])
    assert (
        len(MasterHandshake(9_000, epochs).encode())
        == MASTER_HANDSHAKE.size + ENTRIES_KEPT * EPOCH.size
    )


def test_an_invalid_confirm_offset_confirms_nothing() -> None:
    stream = empty_replica()
    stream.feed(memoryview(MasterHandshake(900, Epochs.of(MINE)).encode()))
    stream.feed(memoryview(LogTransfer(0, 2, EpochEntry(1, 0), -1).encode() + b"xx"))
    assert stream.confirm_offset == 0
