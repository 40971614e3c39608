"""Arrays that the kernels of `net` share with Python."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from delivery.plugin import Response
from duemq.net import codec, layout
from duemq.net.kernels.answers import SCRATCH_BYTES, VARIABLE_BYTES_MAX, AnswerText

CONNECTIONS_MAX = 32_768  # of one turn
_PIECE_MARK = "@"


def host_column(address: bytes, port: int) -> npt.NDArray[Any]:
    """Return (1,) HOST of address bytes (4 or 16) and a port."""
    number = int.from_bytes(address, "big")
    column = np.zeros(1, layout.HOST)
    column[0] = (number >> 64, number & 0xFFFF_FFFF_FFFF_FFFF, port, len(address) == 16)
    return column


def send_fields(
    queue_id: str, transaction_id: str | None, message_id: str, queue_offset: str, *, region: str,
    trace_on: bool, recall_handle: str | None = None,
) -> dict[str, str]:  # fmt: skip
    """Return the extFields of a send's answer, in Apache's order. SendMessageResponseHeader"""
    fields = {"queueId": queue_id}
    if transaction_id is not None:
        fields["transactionId"] = transaction_id
    fields["msgId"] = message_id
    fields |= refusal_fields(region=region, trace_on=trace_on)
    if recall_handle is not None:
        fields["recallHandle"] = recall_handle
    fields["queueOffset"] = queue_offset
    return fields


def refusal_fields(*, region: str, trace_on: bool) -> dict[str, str]:
    """Return the extFields that every answer to a send has."""
    return {"TRACE_ON": "true" if trace_on else "false", "MSG_REGION": region}


def answer_text(rows_max: int, *, region: str, trace_on: bool, broker_name: str) -> AnswerText:
    """Return the constant pieces of a send's answer, and room for `rows_max` answers.

    The pieces are cut from an answer that the codec encoded.
    """
    pieces = _pieces(region, trace_on, _PIECE_MARK)
    pieces.append(_pieces(region, trace_on, None)[3])
    cuts = np.cumsum([0, *map(len, pieces)]).astype(np.int64)
    text = np.frombuffer(b"".join(pieces), np.uint8).copy()
    out = np.empty(rows_max * (text.size + VARIABLE_BYTES_MAX), np.uint8)
    broker = np.frombuffer(broker_name.encode(), np.uint8).copy()
    scratch, ends = np.zeros(SCRATCH_BYTES, np.uint8), np.zeros(CONNECTIONS_MAX, np.int64)
    return AnswerText(text, cuts, broker, scratch, out, ends)


def _pieces(region: str, trace_on: bool, recall_handle: str | None) -> list[bytes]:
    mark = _PIECE_MARK
    assert mark not in region
    fields = send_fields(
        mark, mark, mark, mark, region=region, trace_on=trace_on, recall_handle=recall_handle
    )
    whole = bytes(codec.encode_response(Response(0, None, fields), 0)[0])[layout.PREFIX_BYTES :]
    head, _, tail = whole.partition(b'"opaque":0,')
    return (head + b'"opaque":' + mark.encode() + b"," + tail).split(mark.encode())
