"""Location and owner of a ledger. Does not import SQLAlchemy."""

from __future__ import annotations

import re
from typing import Final

from msgspec import Struct

FILE_NAME: Final = "duemq.ledger.sqlite"
BUSY_MS: Final = 2_000
"""Maximum time, in ms, that a transaction waits for the lock of another one."""
_URL = re.compile(
    r"(?P<kind>\w+)(\+\w+)?://((?P<user>[^:/]*)(?P<password>:[^@]*)?@)?(?P<rest>[^?]*)"
)


class LedgerLocation(Struct, frozen=True, kw_only=True):
    """Location and owner of a ledger.

    Attributes:
        store_id: Identity of the store that owns it.
        store_path: Path of that store, for error messages.
        busy_ms: Time that a transaction waits for a lock, in ms.
    """

    url: str
    store_id: str
    store_path: str
    busy_ms: int = BUSY_MS


def shown_url(url: str) -> str:
    """Return a URL for messages: without driver, password and options."""
    match = _URL.match(url)
    if match is None:
        return "?"
    kind, user, rest = match["kind"], match["user"], match["rest"]
    position = "" if user is None else f"{user}{':***' if match['password'] else ''}@"
    return f"{'postgresql' if kind == 'postgres' else kind}://{position}{rest}"
