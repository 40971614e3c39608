"""Fields of requests for views."""

from __future__ import annotations

from collections.abc import Mapping

from duemq_common.codes import ResponseCode
from duemq_common.errors import RequestError


def number(fields: Mapping[str, str], name: str, default: int, maximum: int) -> int:
    """Return a field that is a whole number from 0 to `maximum`; empty: the default.

    Raises:
        RequestError: The field is not such a number.
    """
    text = fields.get(name, "")
    if not text:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= 19 and int(text) <= maximum):
        reason = f"{name}={text[:40]!r} is not a whole number from 0 to {maximum}"
        raise RequestError(ResponseCode.SYSTEM_ERROR, reason)
    return int(text)
