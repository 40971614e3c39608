"""Frames that differ only in numbers, against a twin that matches each with an expression."""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duemq.pop.kernels.matching_frames import DIGITS_MAX, INT_MAX, Template, read_matching

LITERALS = (b'{"offset":"', b'","opaque":', b"}")
COLUMNS = (1, 0)  # the second number is the opaque
FRAMES_MAX = 4
NUMBERS = st.one_of(st.integers(0, 10**DIGITS_MAX - 1), st.sampled_from((0, 9, INT_MAX)))
TEXTS = st.one_of(
    NUMBERS.map(lambda number: b"%d" % number),
    st.sampled_from((b"", b"-1", b"00", b"07", b"+5", b"1.5", b"1e3", b" 1", b"x", b"1x")),
    st.sampled_from((b"9" * 18, b"9" * 19, b"1" + b"0" * 18, b"0" * 18)),
    st.sampled_from((b"%d" % INT_MAX, b"%d" % (INT_MAX + 1), b"/", b":")),
)


def template_of(literals: Sequence[bytes], columns: Sequence[int]) -> Template:
    text = np.frombuffer(b"".join(literals), np.uint8).copy()
    ends = np.cumsum([len(literal) for literal in literals]).astype(np.int64)
    return Template(text, ends, np.array(columns, np.int64))


TEMPLATE = template_of(LITERALS, COLUMNS)


def frame(header: bytes, body: bytes = b"", serialize_type: int = 0) -> bytes:
    word = serialize_type << 24 | len(header)
    return struct.pack(">II", 4 + len(header) + len(body), word) + header + body


def header_of(*texts: bytes, literals: Sequence[bytes] = LITERALS) -> bytes:
    parts = [literals[0]]
    for text, literal in zip(texts, literals[1:], strict=True):
        parts += [text, literal]
    return b"".join(parts)


def taken(data: bytes, frames_max: int = FRAMES_MAX) -> tuple[list[list[int]], list[int]]:
    """Return the rows and the ends that the kernel finds."""
    numbers, ends = np.full((frames_max, 2), -1, np.int64), np.full(frames_max, -1, np.int64)
    lead = b"?" * 3  # a buffer does not begin with a frame
    buffer = np.frombuffer(lead + data + b"9" * 64, np.uint8).copy()
    count = read_matching(buffer, len(lead), len(lead) + len(data), TEMPLATE, numbers, ends)
    return numbers[:count].tolist(), (ends[:count] - len(lead)).tolist()


def naive_taken(data: bytes, frames_max: int = FRAMES_MAX) -> tuple[list[list[int]], list[int]]:
    number = rb"(0|[1-9][0-9]{0,17})"
    pattern = re.compile(number.join(re.escape(literal) for literal in LITERALS))
    rows: list[list[int]] = []
    ends: list[int] = []
    at = 0
    while len(rows) < frames_max and len(data) - at >= 8:
        length, serialize_type = struct.unpack_from(">IB", data, at)
        header_bytes = int.from_bytes(data[at + 5 : at + 8], "big")
        header = data[at + 8 : at + 8 + header_bytes]
        match = pattern.fullmatch(header)
        is_whole = len(header) == header_bytes
        if serialize_type or length != 4 + header_bytes or not is_whole or not match:
            break
        offset, opaque = map(int, match.groups())
        if opaque > INT_MAX:
            break
        at += 8 + header_bytes
        rows.append([opaque, offset])
        ends.append(at)
    return rows, ends


FRAMES = st.one_of(
    st.builds(lambda a, b: frame(header_of(b"%d" % a, b"%d" % b)), NUMBERS, st.integers(0, 9)),
    st.builds(lambda a, b: frame(header_of(a, b)), TEXTS, TEXTS),
    st.builds(
        lambda a, b, body, kind: frame(header_of(a, b), body, kind),
        TEXTS,
        TEXTS,
        st.binary(max_size=3),
        st.sampled_from((0, 1, 128, 255)),
    ),
    st.builds(lambda a, b: frame(header_of(a, b) + b" "), TEXTS, TEXTS),
    st.builds(lambda a, b: frame(header_of(a, b)[:-1]), TEXTS, TEXTS),
    st.binary(max_size=20),
)


@given(st.lists(FRAMES, max_size=6), st.data())
def test_rows_are_those_of_the_twin(frames: list[bytes], data: st.DataObject) -> None:
    stream = bytearray(b"".join(frames))
    if stream and data.draw(st.booleans()):
        stream[data.draw(st.integers(0, len(stream) - 1))] = data.draw(st.integers(0, 255))
    found = bytes(stream[: data.draw(st.integers(0, len(stream)))])
    assert taken(found) == naive_taken(found)


def test_a_stream_may_be_cut_at_every_byte() -> None:
    rows = [[0, 0], [70, 10], [7, 10**17]]
    frames = [frame(header_of(b"%d" % offset, b"%d" % opaque)) for opaque, offset in rows]
    stream, ends = b"".join(frames), np.cumsum([len(each) for each in frames]).tolist()
    for cut in range(len(stream) + 1):
        complete = sum(end <= cut for end in ends)
        assert taken(stream[:cut]) == (rows[:complete], ends[:complete])


@pytest.mark.parametrize(
    "text",
    [b"", b"-1", b"00", b"07", b"1" * 19, b"9" * 30, b"+1", b"1.0", b"1e1", b" 1", b"\xb9"],
)
@pytest.mark.parametrize("at", [0, 1])
def test_numbers_of_another_form_are_left_to_the_codec(text: bytes, at: int) -> None:
    texts = [b"5", b"6"]
    texts[at] = text
    good = frame(header_of(b"1", b"2"))
    assert taken(good + frame(header_of(*texts)) + good) == ([[2, 1]], [len(good)])


def test_numbers_fit_their_columns() -> None:
    largest = frame(header_of(b"9" * 18, b"%d" % INT_MAX))
    assert taken(largest)[0] == [[INT_MAX, 10**18 - 1]]
    assert taken(frame(header_of(b"1", b"%d" % (INT_MAX + 1)))) == ([], [])


@pytest.mark.parametrize(
    "header",
    [
        header_of(b"1", b"2") + b" ",
        header_of(b"1", b"2")[:-1],
        header_of(b"1", b"2")[1:],
        header_of(b"1", b"2", literals=(LITERALS[0], b'", "opaque":', b"}")),
        header_of(b"1", b"2", literals=(LITERALS[0], b'"opaque":', b"}")),
        header_of(b"1", b"2").replace(b"offset", b"offsex"),
        b"",
    ],
)
def test_other_literals_end_a_run(header: bytes) -> None:
    assert taken(frame(header)) == ([], [])


def test_frames_with_a_body_or_of_another_type_end_a_run() -> None:
    header = header_of(b"1", b"2")
    assert taken(frame(header))[0] == [[2, 1]]
    assert taken(frame(header, b"x")) == ([], [])
    assert taken(frame(header, serialize_type=1)) == ([], [])
    shorter = struct.pack(">II", 3 + len(header), len(header)) + header
    assert taken(shorter) == ([], [])
    huge = struct.pack(">II", 0xFFFF_FFFF, 0x00FF_FFFF) + header
    assert taken(huge) == ([], [])


def test_rows_are_limited_by_the_output() -> None:
    each = frame(header_of(b"1", b"2"))
    assert taken(each * 5) == ([[2, 1]] * 4, [len(each) * n for n in range(1, 5)])
    assert taken(each * 5, frames_max=0) == ([], [])
