"""Recall handle: names a timer to cancel. RecallMessageHandle.

URL-safe base64 of "v1 TOPIC BROKERNAME TIME UNIQKEY", TIME = TIMER_OUT_MS + 1
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import Final

VERSION: Final = "v1"
TEXT_CHARACTERS_MAX: Final = 4_096


class HandleError(ValueError):
    """Error: a malformed recall handle."""


@dataclass(frozen=True, slots=True)
class RecallHandle:
    """Timer named by a recall handle.

    Attributes:
        time_text: TIMER_OUT_MS + 1 as written in the handle.
    """

    topic: str
    broker_name: str
    time_text: str
    unique_id: str

    def encode(self) -> str:
        """Return the text that a producer gets."""
        parts = (VERSION, self.topic, self.broker_name, self.time_text, self.unique_id)
        return base64.urlsafe_b64encode(" ".join(parts).encode()).decode()


def decode_handle(text: str) -> RecallHandle:
    """Return the decoded handle.

    Raises:
        HandleError: It is not base64, not of version v1, or a part is missing.
    """
    if not text:
        raise HandleError("the recall handle is empty")
    if len(text) > TEXT_CHARACTERS_MAX:
        raise HandleError(f"a recall handle of {len(text)} characters is none")
    try:
        if "+" in text or "/" in text:
            raise ValueError("it is not of the URL-safe kind")
        padding = "=" * (-len(text) % 4)
        raw = base64.b64decode(text + padding, altchars=b"-_", validate=True).decode()
    except (ValueError, binascii.Error) as error:
        raise HandleError(f"the recall handle is not base64: {error}") from error
    parts = raw.split(" ", 4)
    if parts[0] != VERSION:
        raise HandleError(f"the recall handle is of another version than {VERSION}")
    if len(parts) < 5 or not all(parts):
        raise HandleError("the recall handle is cut off: v1 TOPIC BROKER TIME KEY is needed")
    return RecallHandle(*parts[1:])
