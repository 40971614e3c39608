"""Kernels that write records of the revive topic as rows of a batch, from literals and numbers.

literals   {"ao":-1,"aol":[|       |],"bn":"b","c":"g","pt":|   |,"q":| |,"so":|  |,"t":"T"}
numbers                     17,19,20                         1000      2        17
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from message_store.kernels.bytes import Bytes, copy, put_digits
from message_store.kernels.kernel import kernel
from message_store.layout import TIMER_DELIVER_MS

Numbers = npt.NDArray[np.int64]
CHECKPOINT, ACK, BATCH_ACK = range(3)  # kinds of records
# Columns of the numbers of a record. NAMED is the offset in the unique key; OFFSETS_END is the end
# of the record's offsets in `offsets`.
(
    KIND,
    REVIVE_QUEUE,
    QUEUE,
    START,
    POP_MS,
    INVISIBLE_MS,
    REVIVE_MS,
    DUE_MS,
    NAMED,
    COUNT,
    OFFSETS_END,
) = range(11)
COLUMNS = 11
# Codes of values after a literal that are not a column's number.
NOTHING, OFFSETS, DISTANCES, UNIQUE_START, UNIQUE_END = range(-1, -6, -1)
COMMA = ord(",")
NUMBER_BYTES_MAX = 20


class Texts(NamedTuple):
    """Bodies and properties of the records of one topic, group and broker name.

    Attributes:
        literals: (n,) u1: all literals, one after another.
        ends: (parts,) i8: end of each literal.
        values: (parts,) i8: value after each literal: a column, or one of the codes above.
        first: (7,) i8: first part of the body and of the properties of each kind, and the end.
    """

    literals: Bytes
    ends: Numbers
    values: Numbers
    first: Numbers


class Output(NamedTuple):
    """Output of `put_records`.

    Attributes:
        rows: (n,) `message_store.layout.PUT`: rows to fill.
        staging: (bytes,) u1: the batch's staging buffer, with room for all records.
        blank: (1,) `message_store.layout.PUT`: columns that all records share.
        tags_hashes: (3,) i8: hash of the tag of each kind.
    """

    rows: npt.NDArray[Any]
    staging: Bytes
    blank: npt.NDArray[Any]
    tags_hashes: Numbers


@kernel
def put_list(offsets: Numbers, first: int, end: int, base: int, out: Bytes, position: int) -> int:
    """Write offsets[first:end] minus `base`, separated by commas; return the end position."""
    for index in range(first, end):
        if index > first:
            out[position] = COMMA
            position += 1
        position = put_digits(out, position, offsets[index] - base)
    return position


@kernel
def put_text(
    texts: Texts, text: int, numbers: Any, offsets: Numbers, first: int, out: Bytes, position: int
) -> tuple[int, int, int]:
    """Write a body or properties to out[position:].

    Args:
        text: Index of the text: twice the kind of the record, plus 1 for properties.
        numbers: (COLUMNS,) i8: numbers of the record.
        offsets: (m,) i8: offsets of all records, record after record.
        first: Index of the record's first offset.
    Returns:
        Position after the text, and start and end of the unique key in `out`.
    """
    unique_start, unique_end = position, position
    for part in range(texts.first[text], texts.first[text + 1]):
        start = texts.ends[part - 1] if part > 0 else 0
        size = texts.ends[part] - start
        copy(out, position, texts.literals, start, size)
        position += size
        value = texts.values[part]
        if value >= 0:
            position = put_digits(out, position, numbers[value])
        elif value == OFFSETS:
            position = put_list(offsets, first, numbers[OFFSETS_END], 0, out, position)
        elif value == DISTANCES:
            position = put_list(offsets, first, numbers[OFFSETS_END], numbers[START], out, position)
        elif value == UNIQUE_START:
            unique_start = position
        elif value == UNIQUE_END:
            unique_end = position
    return position, unique_start, unique_end


@kernel
def put_records(
    numbers: Numbers, offsets: Numbers, texts: Texts, staged: int, output: Output
) -> int:
    """Fill a row for each record; return the new number of used bytes of the staging buffer.

    Args:
        numbers: (n * COLUMNS,) i8: numbers of each record.
        offsets: (m,) i8: offsets of all records, record after record.
        staged: Number of used bytes of the staging buffer before the call.
    """
    position, first = np.int64(staged), np.int64(0)
    for index in range(numbers.size // COLUMNS):
        record = numbers[index * COLUMNS : (index + 1) * COLUMNS]
        row = output.rows[index]
        output.rows[index] = output.blank[0]
        kind = record[KIND]
        end, _, _ = put_text(texts, 2 * kind, record, offsets, first, output.staging, position)
        row["body_pos"], row["body_len"] = position, end - position
        position, unique_start, unique_end = put_text(
            texts, 2 * kind + 1, record, offsets, first, output.staging, end
        )
        row["prop_pos"], row["prop_len"] = end, position - end
        row["uniq_pos"], row["uniq_len"] = unique_start, unique_end - unique_start
        row["queue_id"], row["tags_hash"] = record[REVIVE_QUEUE], output.tags_hashes[kind]
        row["timer_kind"], row["timer_value"] = TIMER_DELIVER_MS, record[DUE_MS]
        first = record[OFFSETS_END]
    return position
