"""gRPC status codes, and their encoding in trailers."""

from __future__ import annotations

from enum import IntEnum


class GrpcStatus(IntEnum):
    """Status codes of gRPC that this server sends."""

    OK = 0
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14


class GrpcError(Exception):
    """Error that ends a call with a status other than OK."""

    def __init__(self, status: GrpcStatus, text: str) -> None:
        self.status, self.text = status, text
        super().__init__(f"{status.name}: {text}")


TEXT_CHARACTERS_MAX = 1_024
_PLAIN = frozenset(range(0x20, 0x7F)) - {ord("%")}


def trailers_of(status: GrpcStatus, text: str = "") -> tuple[tuple[bytes, bytes], ...]:
    """Return the header fields that end a call; `text` is percent-encoded."""
    code = (b"grpc-status", b"%d" % status)
    if not text:
        return (code,)
    data = text[:TEXT_CHARACTERS_MAX].strip(" ").encode("utf-8", "replace")
    escaped = "".join(chr(each) if each in _PLAIN else f"%{each:02X}" for each in data)
    return code, (b"grpc-message", escaped.encode())
