"""The last record of a replica's log, compared with what its master repeats."""

from __future__ import annotations

import pytest

from duemq.replication.default_ha import TransferStream
from duemq.replication.layout import TRANSFER
from duemq_common.errors import ReplicationFault

OURS = b"..DELAY\x013.."
LETTER_AT, START = 6, 500


def receive(
    received: bytes, piece: int, *, ours: bytes = OURS, letter_at: int = LETTER_AT
) -> bytes:
    """Return the pending log after a master has repeated `received`, in pieces, and sent more."""
    stream = TransferStream()
    stream.place(START, repeated=ours, letter_at=letter_at)
    data = TRANSFER.pack(START, len(received) + 4) + received + b"more"
    for at in range(0, len(data), piece):
        stream.feed(memoryview(data[at : at + piece]))
    assert (stream.is_compared, stream.offset) == (True, START + len(ours))
    return bytes(stream.pending)


@pytest.mark.parametrize("piece", [1, 5, 100])
@pytest.mark.parametrize("ours", [OURS, OURS.replace(b"DELAY", b"DELAy")], ids=["Y", "y"])
@pytest.mark.parametrize("theirs", [OURS, OURS.replace(b"DELAY", b"DELAy")], ids=["Y", "y"])
def test_the_owner_of_a_level_message_may_have_changed(
    piece: int, ours: bytes, theirs: bytes
) -> None:
    assert receive(theirs, piece, ours=ours) == b"more"


@pytest.mark.parametrize("piece", [1, 100])
@pytest.mark.parametrize(
    ("received", "letter_at"),
    [
        (OURS.replace(b"DELAY", b"DELAx"), LETTER_AT),
        (OURS.replace(b"DELAY", b"dELAY"), LETTER_AT),
        (OURS.replace(b"3", b"4"), LETTER_AT),
        (OURS.replace(b"DELAY", b"DELAy"), -1),
    ],
)
def test_no_other_byte_may_differ(piece: int, received: bytes, letter_at: int) -> None:
    with pytest.raises(ReplicationFault, match="have diverged"):
        receive(received, piece, letter_at=letter_at)
