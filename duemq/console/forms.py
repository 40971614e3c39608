"""Fields of a posted form, with limits."""

from __future__ import annotations

from typing import Final
from urllib.parse import parse_qsl

from starlette.requests import Request

from duemq.http.endpoints import body_bytes, invalid

MEDIA_TYPE: Final = "application/x-www-form-urlencoded"
BYTES_MAX: Final = 1 << 20
FIELDS_MAX: Final = 10_000


async def form_of(request: Request) -> dict[str, str]:
    """Return the fields of a form; of fields with one name, the values separated by spaces.

    Raises:
        Problem: The body is too long, or not a form.
    """
    if request.headers.get("content-type", "").partition(";")[0].strip() != MEDIA_TYPE:
        raise invalid(f"send Content-Type: {MEDIA_TYPE}")
    data = await body_bytes(request.headers, request.receive, BYTES_MAX)
    try:
        text = data.decode()
        pairs = parse_qsl(text, keep_blank_values=True, max_num_fields=FIELDS_MAX)
    except ValueError:
        raise invalid("the form is malformed") from None
    fields: dict[str, str] = {}
    for name, value in pairs:
        fields[name] = f"{fields[name]} {value}" if name in fields else value
    return fields
