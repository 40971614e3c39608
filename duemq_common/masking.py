"""Masking of passwords in configuration values that are shown, logged or returned."""

from __future__ import annotations

import re
from typing import Final

MASK: Final = "***"
_SECRET_KEY = re.compile(
    r"passw|secret|token|credential|access_?key|private_?key|authenticationUser", re.IGNORECASE
)
_USER_INFO = re.compile(r"(://[^\s/?#:@]*):\S*@")  # up to the last @: a password may have one
_QUERY = re.compile(r"([?&;][^=&;\s]*(?:passw|secret|token)[^=&;\s]*=)[^&;\s]*", re.IGNORECASE)


def masked(key: str, value: str) -> str:
    """Return a value with passwords masked: in URLs, and the complete value of a password key.

    Args:
        key: Name of the configuration key.
        value: Text of the value.
    """
    if value and _SECRET_KEY.search(key):
        return MASK
    return masked_url(value)


def masked_url(text: str) -> str:
    """Return text with the passwords of URLs replaced."""
    if "=" in text:
        text = _QUERY.sub(rf"\1{MASK}", text)
    return _USER_INFO.sub(rf"\1:{MASK}@", text) if "://" in text else text
