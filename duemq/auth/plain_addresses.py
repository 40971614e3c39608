"""Address patterns of ACL 1.0 in `plain_acl.yml`.

    *  *.*.*.*                     every client           10.0.0.{1,2}     two clients
    10.0.0.7   2001:db8::7         one client             10.0.0.1,10.0.0.7
    10.0.0-5.*   2001:db8::1-ff    ranges of the last parts

Source: acl/plain/RemoteAddressStrategyFactory of Apache 4.9.7. Each part of a range is compared;
Apache ignores the parts after the first range.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable
from typing import Final

EVERY: Final = frozenset({"*", "*.*.*.*", "*:*:*:*:*:*:*:*"})
Matcher = Callable[[str], bool]
"""Returns whether an IP address matches."""


def matcher(text: str) -> Matcher:
    """Return the matcher of a pattern; a blank pattern matches no client.

    Raises:
        ValueError: The pattern is not an address, list or range.
    """
    text = text.strip()
    if not text:
        return lambda address: False
    if text in EVERY:
        return lambda address: True
    if text.endswith("}"):
        head, _, names = text[:-1].partition("{")
        if not head.endswith((".", ":")):
            raise ValueError(f"{text!r}: braces may only contain the last part of an address")
        return _one_of(head + name.strip() for name in names.split(","))
    if "," in text:
        return _one_of(text.split(","))
    if "*" in text or "-" in text:
        return _range(text)
    return _one_of([text])


def _one_of(texts: Iterable[str]) -> Matcher:
    addresses = frozenset(map(_address, texts))
    return lambda address: _parsed(address) in addresses


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    try:
        return ipaddress.ip_address(text.strip())
    except ValueError:
        raise ValueError(f"{text!r} is not an IP address") from None


def _parsed(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def _range(text: str) -> Matcher:
    is_v6 = ":" in text
    parts = _groups(text) if is_v6 else text.split(".")
    base, greatest, count = (16, 0xFFFF, 8) if is_v6 else (10, 255, 4)
    if len(parts) != count:
        raise ValueError(f"{text!r} has {len(parts)} parts; an address has {count}")
    bounds = [_bounds(part.strip(), base, greatest, text) for part in parts]

    def matches(address: str) -> bool:
        address_text = _parsed(address)
        if address_text is None or (address_text.version == 6) != is_v6:
            return False
        numbers = address_text.exploded.split(":" if is_v6 else ".")
        return all(
            low <= int(number, base) <= high
            for number, (low, high) in zip(numbers, bounds, strict=True)
        )

    return matches


def _groups(text: str) -> list[str]:
    left, double, right = text.partition("::")
    if not double:
        return text.split(":")
    before, after = (side.split(":") if side else [] for side in (left, right))
    return [*before, *["0"] * (8 - len(before) - len(after)), *after]


def _bounds(part: str, base: int, greatest: int, text: str) -> tuple[int, int]:
    if part == "*":
        return 0, greatest
    first, _, last = part.partition("-")
    try:
        low, high = int(first, base), int(last or first, base)
    except ValueError:
        raise ValueError(f"{text!r}: {part!r} is neither a number nor a range") from None
    if not 0 <= low <= high <= greatest:
        raise ValueError(f"{text!r}: {part!r} is not between 0 and {greatest:x}")
    return low, high
