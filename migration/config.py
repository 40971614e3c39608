"""Configuration section of migrations."""

from __future__ import annotations

from dataclasses import dataclass

from message_store.config import option
from message_store.errors import ConfigError
from migration.steps.throttle import Limits
from migration.steps.window import Window, WindowError, parse_window

WINDOW_KEY = "migrationWindow"


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrationConfig:
    """How levels become timers while the broker runs: how fast, when, and where that is told."""

    target_p99_ms: int = option(
        20,
        key="migrationLatenessTargetMs",
        doc="A migration gives way while deliveries are later than this (p99); 0: it never does.",
        unit="ms",
        minimum=0,
        own=True,
        live=True,
        wire=True,
    )
    factor: int = option(
        2,
        key="migrationLatenessFactor",
        doc="A migration gives way while deliveries (p99) are later than so many times what they "
        "are when it rests; 0: only migrationLatenessTargetMs counts.",
        minimum=0,
        own=True,
        live=True,
        wire=True,
    )
    rate_per_s: int = option(
        0,
        key="migrationRate",
        doc="Messages a second that a migration moves at most; 0: as many as lateness allows.",
        unit="messages/s",
        minimum=0,
        own=True,
        live=True,
        wire=True,
    )
    window: str = option(
        "",
        key=WINDOW_KEY,
        doc="When a migration may work, as in `Mon-Fri 01:00-05:00 Europe/Berlin`; empty: always.",
        own=True,
        live=True,
        wire=True,
    )
    ledger_url: str = option(
        "",
        key="migrationLedgerUrl",
        doc="Where migrations are told of: `sqlite:////path/to/file` or "
        "`postgresql://user@host/database`; empty: `duemq.ledger.sqlite` beside the store.",
        own=True,
    )

    def __post_init__(self) -> None:
        try:
            self.parsed_window()
        except WindowError as error:
            raise ConfigError(WINDOW_KEY, self.window, error.why) from error

    @property
    def limits(self) -> Limits:
        """What the throttle keeps to."""
        return Limits(
            target_p99_ms=self.target_p99_ms, factor=self.factor, rate_per_s=self.rate_per_s
        )

    def parsed_window(self) -> Window | None:
        """Return the window, None: always open.

        Raises:
            WindowError: It cannot be understood.
        """
        return parse_window(self.window) if self.window.strip() else None
