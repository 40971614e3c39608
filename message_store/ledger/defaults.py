"""What is known of a ledger without SQLAlchemy, which only those load who open one."""

from __future__ import annotations

from typing import Final

FILE_NAME: Final = "duemq.ledger.sqlite"
BUSY_MS: Final = 2_000
"""How long a transaction waits for another one's lock."""
