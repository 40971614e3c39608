"""Recall handle: text that identifies a timer in a recall request.

A handle is URL-safe base64 of "v1 TOPIC BROKERNAME TIME UNIQKEY" with TIME = TIMER_OUT_MS + 1.

Source: RecallMessageHandle
"""

from __future__ import annotations

import base64
import binascii
from typing import Final

from msgspec import Struct

VERSION: Final = "v1"
TEXT_CHARACTERS_MAX: Final = 4_096


class HandleError(ValueError):
    """Malformed recall handle."""


class RecallHandle(Struct, frozen=True):
    """Decoded recall handle.

    Attributes:
        time_text: TIME as written in the handle; may be invalid.
    """

    topic: str
    broker_name: str
    time_text: str
    unique_id: str

    def encode(self) -> str:
        """Return the text of the handle, as sent to producers."""
        parts = (VERSION, self.topic, self.broker_name, self.time_text, self.unique_id)
        return base64.urlsafe_b64encode(" ".join(parts).encode()).decode()


def decode_handle(text: str) -> RecallHandle:
    """Decode a recall handle.

    Raises:
        HandleError: The text is empty, too long or not base64, has another version, or lacks a
            field.
    """
    if not text:
        raise HandleError("the recall handle is empty")
    if len(text) > TEXT_CHARACTERS_MAX:
        raise HandleError(f"the recall handle is too long: {len(text)} characters")
    try:
        if "+" in text or "/" in text:
            raise ValueError("not the URL-safe alphabet")
        padding = "=" * (-len(text) % 4)
        raw = base64.b64decode(text + padding, altchars=b"-_", validate=True).decode()
    except (ValueError, binascii.Error) as error:
        raise HandleError(f"the recall handle is not base64: {error}") from error
    parts = raw.split(" ", 4)
    if parts[0] != VERSION:
        raise HandleError(f"the recall handle does not have version {VERSION}")
    if len(parts) < 5 or not all(parts):
        raise HandleError("the recall handle is incomplete: it needs v1 TOPIC BROKER TIME KEY")
    return RecallHandle(*parts[1:])
