"""PROXY protocol, versions 1 and 2: the address of a client behind a proxy.

    PROXY TCP4 192.0.2.7 198.51.100.1 56324 10911\\r\\n                   version 1, text
    signature (12) | version, command | family | length (2) | addresses, TLVs      version 2

The caller must not read past the header: `bytes_missing` returns the number of bytes that certainly
belong to it.

Source: HAProxy, The PROXY protocol, versions 1 & 2
"""

from __future__ import annotations

import ipaddress
from typing import Final

from duemq_common.errors import FrameError

V1_PREFIX: Final = b"PROXY "
V2_SIGNATURE: Final = b"\r\n\r\n\x00\r\nQUIT\n"
V1_BYTES_MIN: Final = len(b"PROXY UNKNOWN\r\n")
V1_BYTES_MAX: Final = 107
V2_FIXED_BYTES: Final = 16
V2_REST_BYTES_MAX: Final = 4_096
FIRST_BYTES: Final = frozenset((V1_PREFIX[0], V2_SIGNATURE[0]))
"""First bytes of a header; no TLS handshake and no frame of a valid length begins with them."""

_V2_LOCAL, _V2_PROXY = 0x20, 0x21
_TCP4, _TCP6 = 0x11, 0x21
_ADDRESS_BYTES = {_TCP4: 4, _TCP6: 16}


def has_prefix(data: bytes) -> bool:
    """Return whether the bytes begin with the prefix of a header, which may be malformed."""
    return data.startswith((V1_PREFIX, V2_SIGNATURE))


def bytes_missing(data: bytes) -> int:
    """Return the number of bytes to read before the next call; 0: the header is complete.

    Raises:
        FrameError: The bytes are not a header, or the header is too long.
    """
    if data[:1] == V2_SIGNATURE[:1]:
        return _v2_bytes_missing(data)
    _check_prefix(data, V1_PREFIX)
    if len(data) < V1_BYTES_MIN:
        return V1_BYTES_MIN - len(data)
    if data.endswith(b"\r\n"):
        return 0
    if len(data) >= V1_BYTES_MAX:
        raise FrameError(f"PROXY header has no end within {V1_BYTES_MAX} bytes")
    return 1


def _v2_bytes_missing(data: bytes) -> int:
    _check_prefix(data, V2_SIGNATURE)
    if len(data) < V2_FIXED_BYTES:
        return V2_FIXED_BYTES - len(data)
    rest_bytes = int.from_bytes(data[14:16], "big")
    if rest_bytes > V2_REST_BYTES_MAX:
        raise FrameError(f"PROXY header of {rest_bytes} bytes; the limit is {V2_REST_BYTES_MAX}")
    return V2_FIXED_BYTES + rest_bytes - len(data)


def _check_prefix(data: bytes, prefix: bytes) -> None:
    if data[: len(prefix)] != prefix[: len(data)]:
        raise FrameError(f"data begin with {data[:12]!r}: neither a frame nor a PROXY header")


def client_address(header: bytes) -> tuple[str, int] | None:
    """Return address and port of the client; None: the connection is the proxy's.

    Args:
        header: A complete header, as `bytes_missing` delimits it.
    Raises:
        FrameError: The header is malformed, or of another version or family.
    """
    if header.startswith(V2_SIGNATURE):
        return _v2_address(header)
    words = header[:-2].decode("ascii", "replace").split(" ")
    if words[1] == "UNKNOWN":
        return None
    if len(words) != 6 or words[1] not in ("TCP4", "TCP6"):
        raise FrameError(f"malformed PROXY header {header!r}")
    version = 4 if words[1] == "TCP4" else 6
    try:
        address = ipaddress.ip_address(words[2])
        port = int(words[4])
    except ValueError as error:
        raise FrameError(f"malformed PROXY header {header!r}: {error}") from error
    if address.version != version or not 0 <= port <= 65_535:
        raise FrameError(f"malformed PROXY header {header!r}")
    return str(address), port


def _v2_address(header: bytes) -> tuple[str, int] | None:
    command, family = header[12], header[13]
    if command == _V2_LOCAL:
        return None
    if command != _V2_PROXY:
        raise FrameError(f"PROXY header with the unknown version and command 0x{command:02x}")
    if family not in _ADDRESS_BYTES:
        return None  # a Unix socket or an unspecified family has no address
    size = _ADDRESS_BYTES[family]
    ports_at = V2_FIXED_BYTES + 2 * size
    if len(header) < ports_at + 4:
        raise FrameError(f"PROXY header of {len(header)} bytes is too short for its addresses")
    address = ipaddress.ip_address(header[V2_FIXED_BYTES : V2_FIXED_BYTES + size])
    return str(address), int.from_bytes(header[ports_at : ports_at + 2], "big")
