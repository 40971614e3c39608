"""Kernel that converts the frames of one connection to rows of a batch: the hot path of sends.

    buffer   ...|prefix|{"code":310,"extFields":{"b":"T",...,"i":"UNIQ_KEY\\u0001..."}}|body|...
                          | spans of the fields   | unescaped             |
    batch    PUT row <----+    WIRE row           +--> staging <----------+ + broker's properties

The kernel reads frames until a frame is incomplete, malformed or must be decoded in Python, or the
batch is full. It returns the reason and the position; no data of that frame is in the batch.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from delayed_delivery.kinds import LEVEL_KIND, TIMER_KIND
from duemq.net.layout import PREFIX_BYTES, WORD_BYTES
from duemq.send.kernels.header import Spans, scan_header
from duemq.send.kernels.properties import scan_properties
from duemq.send.kernels.signature import is_signed, may_send
from duemq.send.kernels.text import unescape
from duemq.send.layout import (
    HEADER_BYTES_MAX,
    KIND_NULL,
    KIND_NUMBER,
    KIND_RICH_TEXT,
    KIND_TEXT,
    KIND_TRUE,
    SEND_REQUIRED,
    SLOT_CODE,
    SLOT_FLAG,
    SLOT_LONG,
    SLOT_OPAQUE,
    SPAN_END,
    SPAN_KIND,
    SPAN_START,
    STATE_BODY_MAX,
    STATE_CONNECTION,
    STATE_FRAME_END,
    STATE_FRAME_MAX,
    STATE_KINDS,
    STATE_PROPERTIES_MAX,
    STATE_ROWS,
    STATE_STAGED,
    STOP_DECODE,
    STOP_FULL,
    STOP_INCOMPLETE,
    STOP_MALFORMED,
    WIRE_ONEWAY,
)
from message_store.kernels.bytes import Bytes, copy, get_i4, get_u4
from message_store.kernels.kernel import kernel
from message_store.kernels.properties import parse_number
from message_store.kernels.topics import TopicNames, find_topic
from message_store.layout import (
    ENTRY_END,
    SYS_BORN_IPV6,
    SYS_STORE_IPV6,
    SYS_TRANSACTION_MASK,
    TIMER_NONE,
)

(GROUP, TOPIC, DEFAULT_TOPIC, DEFAULT_QUEUES, QUEUE_ID, SYS_FLAG, BORN_MS, FLAG) = range(8)
(PROPERTIES, RECONSUME, UNIT_MODE, MAX_RECONSUME, BATCH, BROKER_NAME) = range(8, 14)
REQUIRED = (1 << SEND_REQUIRED) - 1 | 1 << PROPERTIES
CODE_SEND, CODE_SEND_V2 = 10, 310
INT_MAX = 0x7FFF_FFFF
NO_NUMBER = -(1 << 62)
FRAME_INCOMPLETE, FRAME_MALFORMED = -1, -2
HEADER_BYTES_MASK = 0xFFFFFF  # the highest byte of the header length is its encoding
PERCENT = ord("%")  # first byte of %RETRY% and %DLQ% topics
PERM_WRITE = 2  # PermName.PERM_WRITE
UPPER_CASE = 0xDF  # mask that makes a letter upper case
TRUE_UPPER = np.frombuffer(b"TRUE", np.uint8).copy()


class IngestOutput(NamedTuple):
    """Output arrays of the kernel, and values shared by all frames of a turn."""

    rows: npt.NDArray[Any]  # (n,) PUT
    wire: npt.NDArray[Any]  # (n,) WIRE
    staging: Bytes  # (n,) u1
    suffix: Bytes  # (n,) u1: properties that the broker appends
    turn: npt.NDArray[Any]  # (1,) TURN; inside the kernel, its only record


@kernel
def field_number(data: Bytes, spans: Spans, slot: int, limit: int) -> int:
    """Return the integer in `slot`; NO_NUMBER if it is absent, invalid or out of range."""
    # clients write numbers as JSON numbers or as text
    kind = spans[slot, SPAN_KIND]
    if kind != KIND_NUMBER and kind != KIND_TEXT:
        return NO_NUMBER
    value = parse_number(data, spans[slot, SPAN_START], spans[slot, SPAN_END], NO_NUMBER)
    return value if -limit - 1 <= value <= limit else NO_NUMBER


@kernel
def optional_number(data: Bytes, spans: Spans, slot: int, seen: int) -> int:
    """Return the 32-bit number in `slot`, 0 if it is absent, or NO_NUMBER."""
    return field_number(data, spans, slot, INT_MAX) if seen >> slot & 1 else 0


@kernel
def is_false(data: Bytes, spans: Spans, slot: int, seen: int) -> bool:
    """Return whether a boolean field is absent or not `true`."""
    if not seen >> slot & 1:
        return True
    kind, start, end = spans[slot, SPAN_KIND], spans[slot, SPAN_START], spans[slot, SPAN_END]
    if kind == KIND_TRUE:
        return False
    if kind != KIND_TEXT or end - start != TRUE_UPPER.size:
        return True
    for i in range(TRUE_UPPER.size):
        # Boolean.parseBoolean ignores case
        if data[start + i] & UPPER_CASE != TRUE_UPPER[i]:
            return True
    return False


@kernel
def set_hosts(row: Any, born: Any, store: Any, sys_flag: int) -> None:
    """Set both hosts, and the system flag with their IPv6 bits."""
    row["born_ip_hi"] = born["ip_hi"]
    row["born_ip_lo"] = born["ip_lo"]
    row["born_port"] = born["port"]
    row["store_ip_hi"] = store["ip_hi"]
    row["store_ip_lo"] = store["ip_lo"]
    row["store_port"] = store["port"]
    # the client's bits say nothing about the addresses of this connection and this broker
    sys_flag &= ~(SYS_BORN_IPV6 | SYS_STORE_IPV6)
    sys_flag |= SYS_BORN_IPV6 if born["ipv6"] else 0
    row["sys_flag"] = sys_flag | (SYS_STORE_IPV6 if store["ipv6"] else 0)


@kernel
def set_defaults(row: Any) -> None:
    """Set the columns that do not depend on the client."""
    row["real_topic_index"] = -1
    row["real_queue_id"] = 0
    row["prepared_offset"] = 0
    row["due_delay_ms"] = -1
    row["out_ms"] = row["due_ms"] = row["enqueue_ms"] = row["dequeue_ms"] = -1
    row["status"] = 0
    row["phys_offset"] = -1


@kernel
def take_numbers(data: Bytes, spans: Spans, base: int, seen: int, row: Any) -> bool:
    """Set the numeric columns; return False if Python must decode the frame."""
    queue_id = field_number(data, spans, base + QUEUE_ID, INT_MAX)
    sys_flag = field_number(data, spans, base + SYS_FLAG, INT_MAX)
    born_ms = field_number(data, spans, base + BORN_MS, -NO_NUMBER - 1)
    flag = field_number(data, spans, base + FLAG, INT_MAX)
    times = optional_number(data, spans, base + RECONSUME, seen)
    queues = field_number(data, spans, base + DEFAULT_QUEUES, INT_MAX)
    times_max = optional_number(data, spans, base + MAX_RECONSUME, seen)
    # one comparison: NO_NUMBER is below all valid numbers
    if min(queue_id, sys_flag, born_ms, flag, times, queues, times_max) == NO_NUMBER:
        return False
    # Python chooses a queue for -1, and handles half messages
    if queue_id < 0 or sys_flag < 0 or sys_flag & SYS_TRANSACTION_MASK:
        return False
    row["queue_id"] = queue_id
    row["sys_flag"] = sys_flag
    row["born_ms"] = born_ms
    row["flag"] = flag
    row["reconsume_times"] = times
    return is_false(data, spans, base + BATCH, seen)


@kernel
def take_topic(data: Bytes, spans: Spans, slot: int, row: Any, topics: TopicNames) -> bool:
    """Set the topic; return False if it is unknown, closed, a retry topic or lacks the queue."""
    start, end = spans[slot, SPAN_START], spans[slot, SPAN_END]
    # Python creates the topics of retries and dead letters
    if spans[slot, SPAN_KIND] != KIND_TEXT or start == end or data[start] == PERCENT:
        return False
    index = find_topic(data, start, end - start, topics)
    if index < 0:
        return False
    topic = topics.topics[index]
    row["topic_index"] = index
    # a queue that can only be read still exists (AbstractSendMessageProcessor.msgCheck)
    queues = max(topic["write_queues"], topic["read_queues"])
    return topic["closed"] == 0 and topic["perm"] & PERM_WRITE != 0 and row["queue_id"] < queues


@kernel
def take_properties(data: Bytes, spans: Spans, slot: int, row: Any, output: IngestOutput) -> bool:
    """Stage the properties of client and broker; return False if Python must decode the frame."""
    staging, state = output.staging, output.turn["state"]
    start = state[STATE_STAGED]
    if spans[slot, SPAN_KIND] > KIND_RICH_TEXT:
        return False
    end = unescape(data, spans[slot, SPAN_START], spans[slot, SPAN_END], staging, start)
    if end <= start or not scan_properties(staging, start, end, row):
        return False
    # room for this byte is part of the check in `take_frames`
    if staging[end - 1] != ENTRY_END:
        staging[end] = ENTRY_END
        end += 1
    copy(staging, end, output.suffix, 0, output.suffix.size)
    end += output.suffix.size
    row["prop_pos"] = start
    row["prop_len"] = end - start
    # the body follows; on a refusal the caller sets it back
    state[STATE_STAGED] = end
    return end - start <= state[STATE_PROPERTIES_MAX]


@kernel
def strings_are_present(spans: Spans, base: int) -> bool:
    """Return whether the mandatory fields have a value other than null."""
    for slot in range(base, base + SEND_REQUIRED):
        if spans[slot, SPAN_KIND] == KIND_NULL:
            return False
    return True


@kernel
def is_permitted(
    data: Bytes, header: int, body: int, end: int, seen: int, output: IngestOutput, grant: Any
) -> bool:
    """Return whether the account of `grant` signed the frame and may send to its topic."""
    turn = output.turn
    # `take_topic` has checked that the topic exists
    topic_index = output.rows[turn["state"][STATE_ROWS]]["topic_index"]
    if not may_send(topic_index, grant) or body - header > HEADER_BYTES_MAX:
        return False
    return is_signed(data, body, end, turn["spans"], seen, turn["signing"], grant)


@kernel
def take_send(
    data: Bytes,
    header: int,
    body: int,
    end: int,
    sender: Any,
    output: IngestOutput,
    topics: TopicNames,
) -> bool:
    """Fill the next row from one frame; return False if Python must decode the frame."""
    spans, state = output.turn["spans"], output.turn["state"]
    seen = scan_header(data, header, body, spans)
    # without an opaque number no client could assign the response
    code_and_opaque = np.int64(1) << SLOT_CODE | np.int64(1) << SLOT_OPAQUE
    if seen < 0 or seen & code_and_opaque != code_and_opaque:
        return False
    code = field_number(data, spans, SLOT_CODE, INT_MAX)
    flag = optional_number(data, spans, SLOT_FLAG, seen)
    opaque = field_number(data, spans, SLOT_OPAQUE, INT_MAX)
    # code 310 has the fields under one letter each, code 10 under their names
    base = 0 if code == CODE_SEND_V2 else SLOT_LONG
    if (code != CODE_SEND_V2 and code != CODE_SEND) or opaque == NO_NUMBER:
        return False
    if seen >> base & REQUIRED != REQUIRED or not strings_are_present(spans, base):
        return False
    # 0: a request, 2: a oneway request; responses and empty or large bodies go to Python
    if (flag != 0 and flag != 2) or body == end or end - body > state[STATE_BODY_MAX]:
        return False
    row = output.rows[state[STATE_ROWS]]
    if not take_numbers(data, spans, base, seen, row):
        return False
    if not take_topic(data, spans, base + TOPIC, row, topics):
        return False
    if not take_properties(data, spans, base + PROPERTIES, row, output):
        return False
    # last, because the signature covers the whole frame
    grant = sender["grant"]
    if grant["check"] and not is_permitted(data, header, body, end, seen, output, grant):
        return False
    set_hosts(row, sender["born"], output.turn["store_host"], row["sys_flag"])
    set_defaults(row)
    stage_body(data, body, end, row, output)
    # The put hooks of levels and timers skip a batch without any delay.
    state[STATE_KINDS] |= LEVEL_KIND if row["delay_level"] != 0 else 0
    state[STATE_KINDS] |= TIMER_KIND if row["timer_kind"] != TIMER_NONE else 0
    set_wire(output.wire[state[STATE_ROWS]], opaque, row["queue_id"], flag, state)
    return True


@kernel
def stage_body(data: Bytes, body: int, end: int, row: Any, output: IngestOutput) -> None:
    """Copy the body to the staging buffer."""
    state = output.turn["state"]
    position = state[STATE_STAGED]
    copy(output.staging, position, data, body, end - body)
    row["body_pos"] = position
    row["body_len"] = end - body
    state[STATE_STAGED] = position + end - body


@kernel
def set_wire(wire: Any, opaque: int, queue_id: int, flag: int, state: Any) -> None:
    """Set the columns that the response needs."""
    wire["opaque"] = opaque
    wire["connection"] = state[STATE_CONNECTION]
    wire["queue_id"] = queue_id
    wire["flags"] = WIRE_ONEWAY if flag & 2 else 0


@kernel
def frame_end(data: Bytes, pos: int, end: int, frame_bytes_max: int) -> int:
    """Return the end of the frame at `pos`, FRAME_INCOMPLETE or FRAME_MALFORMED."""
    if end - pos < WORD_BYTES:
        return FRAME_INCOMPLETE
    length = get_i4(data, pos)
    # the length decides how much is buffered, so it is checked as soon as it is there
    if length < WORD_BYTES or length > frame_bytes_max:
        return FRAME_MALFORMED
    if end - pos < PREFIX_BYTES:
        return FRAME_INCOMPLETE
    if get_u4(data, pos + WORD_BYTES) & HEADER_BYTES_MASK > length - WORD_BYTES:
        return FRAME_MALFORMED
    # the length does not count itself
    stop = pos + WORD_BYTES + length
    return stop if stop <= end else FRAME_INCOMPLETE


@kernel
def take_frames(
    data: Bytes, pos: int, end: int, sender: Any, output: IngestOutput, topics: TopicNames
) -> Any:
    """Read sends from data[pos:end]; return the reason to stop (STOP_*) and the position."""
    state = output.turn["state"]
    while True:
        stop = frame_end(data, pos, end, state[STATE_FRAME_MAX])
        if stop < 0:
            return (STOP_INCOMPLETE if stop == FRAME_INCOMPLETE else STOP_MALFORMED), pos
        state[STATE_FRAME_END] = stop
        staged = state[STATE_STAGED]
        # No unescaped text is longer than its frame, so one check covers header and body.
        room = output.staging.size - staged - output.suffix.size - 1
        if state[STATE_ROWS] >= output.rows.size or room < stop - pos:
            return STOP_FULL, pos
        header = pos + PREFIX_BYTES
        body = header + (get_u4(data, pos + WORD_BYTES) & HEADER_BYTES_MASK)
        # the first byte of the header word is the encoding; 0 is JSON
        if data[pos + WORD_BYTES] != 0 or not take_send(
            data, header, body, stop, sender, output, topics
        ):
            # drop what the refused frame has staged
            state[STATE_STAGED] = staged
            return STOP_DECODE, pos
        state[STATE_ROWS] += 1
        pos = stop


@kernel
def take_sends(data: Bytes, pos: int, end: int, sender: Any, output: Any, topics: Any) -> Any:
    """Read sends from data[pos:end] until a reason to stop (STOP_*).

    Args:
        sender: (1,) SENDER: the connection.
        output: Members of `IngestOutput` as a plain tuple: a named tuple costs about 5 us per call.
            `state` has the numbers of used rows and staging bytes, which the kernel advances.
        topics: Members of `TopicNames` as a plain tuple.

    Returns:
        STOP_*, and the start of the frame at which the kernel stopped. For STOP_DECODE and
        STOP_FULL, STATE_FRAME_END is the end of that frame.
    """
    (rows, wire, staging, suffix, turn) = output
    (routes, names, table) = topics
    # Pass records, which are one pointer; an array is seven words, at every frame.
    views = IngestOutput(rows, wire, staging, suffix, turn[0])
    return take_frames(data, pos, end, sender[0], views, TopicNames(routes, names, table))
