"""Compiled helpers that build the property texts of records of decisions in a batch."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from delayed_delivery.kernels.redirected import REAL_QID, REAL_TOPIC, R
from message_store.kernels.bytes import Bytes, copy, put_digits
from message_store.kernels.index import KEYS_NAME, UNIQ_NAME
from message_store.kernels.kernel import kernel
from message_store.kernels.names import entry_end, has_value
from message_store.layout import ENTRY_END, NAME_END

K, U = b"KU"  # first bytes of KEYS and UNIQ_KEY
UNREADABLE = 1  # status of a row whose record is incomplete: it is not appended
Rows = npt.NDArray[Any]


class DecisionOutput(NamedTuple):
    """Output of the kernels: rows and the staging buffer of a batch."""

    rows: Rows  # (n,) message_store.layout.PUT
    staging: Bytes  # with room for all
    free_pos: npt.NDArray[np.int64]  # (1,): position of its first free byte


@kernel
def put_bytes(output: DecisionOutput, data: Bytes, start: int, end: int) -> None:
    """Append data[start:end] to the staging buffer."""
    copy(output.staging, output.free_pos[0], data, np.int64(start), np.int64(end - start))
    output.free_pos[0] += end - start


@kernel
def put_byte(output: DecisionOutput, byte: int) -> None:
    """Append a byte to the staging buffer."""
    output.staging[output.free_pos[0]] = byte
    output.free_pos[0] += 1


@kernel
def put_entry(output: DecisionOutput, name: Bytes, data: Bytes, start: int, end: int) -> None:
    """Append the entry of `name` with the value data[start:end]."""
    put_bytes(output, name, 0, name.size)
    put_byte(output, NAME_END)
    put_bytes(output, data, start, end)
    put_byte(output, ENTRY_END)


@kernel
def put_number_entry(output: DecisionOutput, name: Bytes, number: int) -> None:
    """Append the entry of `name` with a number."""
    put_bytes(output, name, 0, name.size)
    put_byte(output, NAME_END)
    output.free_pos[0] = put_digits(output.staging, output.free_pos[0], np.int64(number))
    put_byte(output, ENTRY_END)


@kernel
def target_values(data: Bytes, pos: int, end: int) -> Any:
    """Return (start, end) of REAL_TOPIC, REAL_QID, UNIQ_KEY and KEYS; (0, 0) without a value.

    The last value of a name applies. Readable twin: `decode_properties`.
    """
    none = (np.int64(0), np.int64(0))
    topic, queue, unique, keys = none, none, none, none
    # one scan for all names; the first byte rules out most entries
    while pos < end:
        until = entry_end(data, pos, end)
        first = data[pos]
        if first == R and has_value(data, pos, until, REAL_TOPIC):
            topic = (np.int64(pos + REAL_TOPIC.size + 1), np.int64(until))
        elif first == R and has_value(data, pos, until, REAL_QID):
            queue = (np.int64(pos + REAL_QID.size + 1), np.int64(until))
        elif first == U and has_value(data, pos, until, UNIQ_NAME):
            unique = (np.int64(pos + UNIQ_NAME.size + 1), np.int64(until))
        elif first == K and has_value(data, pos, until, KEYS_NAME):
            keys = (np.int64(pos + KEYS_NAME.size + 1), np.int64(until))
        pos = until + 1
    return topic, queue, unique, keys
