"""Recorded requests and responses between Apache's servers and real clients."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from duemq_common.request import Request, Response
from tests.support.golden_stores import frames


class Exchange(NamedTuple):
    """Request and Apache's response; None: the request was one-way, or the recording ended."""

    server: str  # namesrv, broker
    connection: int
    request: Request
    response: Response | None


def read_exchanges(stream: Path) -> Iterator[Exchange]:
    """Yield the requests of clients in a recording, in order, with their responses."""
    recorded = list(frames(stream))
    responses = {
        (frame["conn"], frame["header"]["opaque"], frame["dir"]): _response(frame)
        for frame in recorded
        if frame["header"]["flag"] & 1
    }
    for frame in recorded:
        header = frame["header"]
        if header["flag"] & 1 or frame["dir"] != "request":
            continue
        key = (frame["conn"], header["opaque"], "response")
        yield Exchange(frame["server"], frame["conn"], _request(frame), responses.get(key))


def _body(frame: dict[str, Any]) -> bytes:
    return base64.b64decode(frame.get("body_b64") or "")


def _request(frame: dict[str, Any]) -> Request:
    header = frame["header"]
    return Request(
        header["code"],
        {name: _text(value) for name, value in (header.get("extFields") or {}).items()},
        _body(frame),
        opaque=header["opaque"],
        language=header["language"],
        version=header["version"],
        oneway=bool(header["flag"] & 2),
    )


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _response(frame: dict[str, Any]) -> Response:
    header = frame["header"]
    return Response(header["code"], header.get("remark"), header.get("extFields"), _body(frame))
