"""Receive buffer against a bytearray."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from duemq.net.memory import CAPACITY_MIN, READ_BYTES_MIN, ReceiveBuffer

steps = st.lists(
    st.tuples(st.sampled_from(["read", "take", "shrink"]), st.integers(0, 200_000)), max_size=30
)


@given(steps)
def test_consumed_bytes_equal_received_bytes(steps: list[tuple[str, int]]) -> None:
    buffer, model = ReceiveBuffer(), bytearray()
    serial = 0
    for step, size in steps:
        if step == "read":
            space = buffer.writable()
            assert len(space) >= READ_BYTES_MIN
            count = min(size, len(space))
            serial += 1
            data = bytes([serial % 251]) * count
            space[:count] = data
            buffer.received(count)
            model += data
        elif step == "take":
            count = min(size, len(buffer))
            buffer.take(buffer.start + count)
            del model[:count]
        else:
            buffer.shrink()
        assert buffer.view[buffer.start : buffer.end] == model
        assert buffer.data.nbytes == len(buffer.view)


def test_an_empty_buffer_shrinks() -> None:
    buffer = ReceiveBuffer()
    for _ in range(20):
        buffer.received(len(buffer.writable()))
    assert buffer.data.size > CAPACITY_MIN
    buffer.shrink()
    assert buffer.data.size > CAPACITY_MIN
    buffer.take(buffer.end)
    buffer.shrink()
    assert buffer.data.size == CAPACITY_MIN
