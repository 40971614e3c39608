"""Offset message ids: address of the store host, and log offset, as hexadecimal digits."""

from __future__ import annotations

import ipaddress

from message_store.log.layout import OFFSET_ID_TAIL


def encode_offset_id(address: bytes, port: int, phys_offset: int) -> str:
    """Return the offset message id: upper-case hex of address (4 or 16), port, offset."""
    return (address + OFFSET_ID_TAIL.pack(port, phys_offset)).hex().upper()


def decode_offset_id(text: str) -> tuple[str, int, int]:
    """Return (ip, port, phys_offset) of an offset message id.

    Raises:
        ValueError: If the text is not 32 or 56 hex digits.
    """
    if len(text) not in (32, 56):
        raise ValueError(f"{text!r}: an offset message id has 32 or 56 hex digits")
    data = bytes.fromhex(text)
    port, phys_offset = OFFSET_ID_TAIL.unpack(data[-12:])
    return str(ipaddress.ip_address(data[:-12])), port, phys_offset
