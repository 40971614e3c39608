"""The framing of a master in controller mode: what replicas get, and what they are refused."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duemq.replication.autoswitch_frames import (
    AutoSwitchStream,
    Handshake,
    LogEndReport,
    LogTransfer,
    MasterHandshake,
    OwnLog,
)
from duemq.replication.autoswitch_master import AutoSwitchMaster
from duemq.replication.epoch_file import EpochEntry, Epochs
from duemq.replication.own_log import OwnRecord
from duemq_common.errors import ReplicationFault

OWN_ID = 1
EPOCHS = Epochs.of([(1, 0), (3, 500), (4, 500), (7, 800)])
LOG_END = 950
FILE_BYTES = 400
# Apache 5.3.3 as replica 2: its handshake, and its report of an empty log.
APACHE_HANDSHAKE = bytes.fromhex("00000001000000000000000000000002")
APACHE_REPORT = bytes.fromhex("000000020000000000000000")


def master(epochs: Epochs = EPOCHS, confirmed: int = 900) -> AutoSwitchMaster:
    """Return the framing of a new connection."""
    return AutoSwitchMaster(OWN_ID, lambda: epochs, lambda: confirmed, file_bytes=FILE_BYTES)


def received(
    frames: Iterable[Handshake | LogEndReport], log_end: int = LOG_END
) -> AutoSwitchMaster:
    """Return the framing of a connection that has received these frames."""
    found = master()
    found.receive(b"".join(frame.encode() for frame in frames), log_end)
    return found


@pytest.mark.parametrize("size", [1, 5, 16, 28])
def test_a_handshake_is_answered_with_the_epochs(size: int) -> None:
    found = master()
    data = APACHE_HANDSHAKE + APACHE_REPORT
    for at in range(0, len(data), size):
        found.receive(data[at : at + size], LOG_END)
    assert found.data_to_send() == MasterHandshake(LOG_END, EPOCHS).encode()
    assert found.data_to_send() == b""
    assert (found.replica_id, found.is_learner) == (2, False)
    assert (found.start, found.acknowledged) == (0, 0)


def test_a_replica_is_known_after_its_handshake_only() -> None:
    assert (master().replica_id, master().start, master().acknowledged) == (None, None, 0)
    assert received([Handshake(2)]).start is None
    assert received([Handshake(2, is_async_learner=True)]).is_learner


@pytest.mark.parametrize(
    ("from_last_file", "report", "log_end", "start"),
    [
        (False, 0, 950, 0),
        (True, 0, 950, 800),
        (True, 0, 300, 0),
        (True, 700, 950, 700),
    ],
)
def test_an_empty_replica_may_ask_for_the_last_file(
    from_last_file: bool, report: int, log_end: int, start: int
) -> None:
    found = received([Handshake(2, from_last_file), LogEndReport(report)], log_end)
    assert (found.start, found.acknowledged) == (start, report)


def test_reports_are_acknowledgements() -> None:
    found = received([Handshake(2), LogEndReport(500), LogEndReport(500), LogEndReport(900)])
    assert (found.start, found.acknowledged) == (500, 900)


def test_a_repeated_handshake_is_answered_once() -> None:
    """Apache's replica repeats it if the answer has arrived in part."""
    found = received([Handshake(2), Handshake(2)])
    assert found.data_to_send() == MasterHandshake(LOG_END, EPOCHS).encode()


@pytest.mark.parametrize(
    ("frames", "why"),
    [
        ([LogEndReport(0)], "before its handshake"),
        ([Handshake(OWN_ID)], "two stores share one identity"),
        ([Handshake(2), Handshake(3)], "a second handshake, with id 3"),
        ([Handshake(2), LogEndReport(0), Handshake(2)], "a second handshake"),
        ([Handshake(2), LogEndReport(951)], "acknowledgement beyond the log.*951.*950"),
        ([Handshake(2), LogEndReport(500), LogEndReport(499)], "reports log offset 499 after 500"),
    ],
)
def test_what_cannot_be_is_refused(frames: list[Handshake | LogEndReport], why: str) -> None:
    with pytest.raises(ReplicationFault, match=why):
        received(frames)


def test_a_transfer_never_crosses_an_epoch() -> None:
    found = master()
    assert [found.transfer_end(at, 950) for at in (0, 499, 500, 799, 800)] == [
        500,
        500,
        800,
        800,
        950,
    ]
    assert found.transfer_end(0, 100) == 100
    assert found.transfer_header(499, 1) == LogTransfer(499, 1, EpochEntry(1, 0), 900).encode()
    assert found.transfer_header(500, 9) == LogTransfer(500, 9, EpochEntry(4, 500), 900).encode()
    assert found.transfer_header(950, 0) == LogTransfer(950, 0, EpochEntry(7, 800), 900).encode()


def test_log_that_was_written_before_the_first_epoch_is_transferred_with_it() -> None:
    found = master(Epochs.of([(2, 500)]))
    assert found.transfer_end(100, 900) == 500
    assert (
        found.transfer_header(100, 400) == LogTransfer(100, 400, EpochEntry(2, 500), 900).encode()
    )


def test_a_growing_confirm_offset_is_news() -> None:
    confirmed = [0]
    found = AutoSwitchMaster(OWN_ID, lambda: EPOCHS, lambda: confirmed[0], file_bytes=FILE_BYTES)
    found.transfer_header(0, 900)
    assert not found.has_new_confirm_offset()
    assert found.awaits_confirmation(900)
    confirmed[0] = 900
    assert found.has_new_confirm_offset()
    found.transfer_header(900, 0)
    assert not found.has_new_confirm_offset()
    assert not found.awaits_confirmation(900)


@given(
    st.lists(st.tuples(st.integers(1, 3), st.binary(max_size=300)), min_size=1),
    st.integers(1, 100),
    st.integers(0, 500),
)
def test_our_replica_has_the_epochs_of_our_master(
    written: list[tuple[int, bytes]], size: int, held: int
) -> None:
    """A log of several epochs, to a replica that has the beginning of it."""
    entries, log = list[Any](), b""
    for more, data in written:
        entries.append(((entries[-1][0] if entries else 0) + more, len(log)))
        log += data
    epochs = Epochs.of(entries)
    held = min(held, len(log))
    framing = AutoSwitchMaster(OWN_ID, lambda: epochs, lambda: len(log), file_bytes=1 << 20)
    own = OwnLog(held, epochs.before(held), lambda at: OwnRecord(at - 1, log[at - 1 : at]))
    stream = AutoSwitchStream(own)
    framing.receive(Handshake(2).encode(), len(log))
    stream.feed(memoryview(framing.data_to_send()))
    framing.receive(stream.data_to_send(), len(log))
    assert framing.start is not None
    at = framing.start
    while at < len(log):
        end = framing.transfer_end(at, min(at + size, len(log)))
        stream.feed(memoryview(framing.transfer_header(at, end - at) + log[at:end]))
        at = end
    stream.feed(memoryview(framing.transfer_header(at, 0)))
    assert stream.pending.tobytes() == log[held:]
    assert stream.is_compared
    assert stream.confirm_offset == len(log)
    for offset in range(len(log)):
        assert stream.epochs.covering(offset) == epochs.covering(offset)
    if log:
        assert stream.epochs.last == epochs.covering(len(log))
