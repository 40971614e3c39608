"""Facts about a ledger that need no SQLAlchemy."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

FILE_NAME: Final = "duemq.ledger.sqlite"
BUSY_MS: Final = 2_000
"""How long a transaction waits for another one's lock."""


def shown_text(url: str) -> str:
    """Return a ledger's URL for messages, as `engine.shown` does: no driver, password, options."""
    parts = urlsplit(url)
    kind = parts.scheme.partition("+")[0]
    who, at, host = parts.netloc.rpartition("@")
    name, colon, _ = who.partition(":")
    place = f"{name}:***@{host}" if colon else f"{name}{at}{host}"
    return f"{'postgresql' if kind == 'postgres' else kind}://{place}{parts.path}"
