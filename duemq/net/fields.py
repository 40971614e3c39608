"""Parsers of request header fields; errors have Apache's codes and texts."""

from __future__ import annotations

from duemq_common.codes import ResponseCode
from duemq_common.errors import RequestError
from duemq_common.request import Request

INT_MAX = (1 << 31) - 1
LONG_MAX = (1 << 63) - 1


def text(request: Request, name: str) -> str:
    """Return a mandatory field.

    Raises:
        RequestError: The field is missing: SYSTEM_ERROR.
    """
    value = request.fields.get(name)
    if value is None:
        raise RequestError(ResponseCode.SYSTEM_ERROR, f"the custom field <{name}> is null")
    return value


def integer(request: Request, name: str, default: int | None = None, *, max: int = INT_MAX) -> int:
    """Return a field as an int32 (`max` INT_MAX) or int64 (LONG_MAX); mandatory without `default`.

    Raises:
        RequestError: The field is missing, not a number or out of range: SYSTEM_ERROR.
    """
    value = request.fields.get(name)
    if not value:
        if default is not None:
            return default
        value = text(request, name)
    try:
        number = int(value) if value.isascii() and len(value) <= 20 and "_" not in value else None
    except ValueError:
        number = None
    if number is None or not -max - 1 <= number <= max:
        raise RequestError(
            ResponseCode.SYSTEM_ERROR, f"the custom field <{name}> is not a number: {value[:64]!r}"
        )
    return number


def long(request: Request, name: str, default: int | None = None) -> int:
    """Return a field as an int64; see `integer`."""
    return integer(request, name, default, max=LONG_MAX)


def boolean(request: Request, name: str) -> bool:
    """Return whether a field is `true` in any letter case; False if absent."""
    return request.fields.get(name, "").lower() == "true"
