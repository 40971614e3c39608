"""Configuration section of migrations."""

from __future__ import annotations

from dataclasses import dataclass

from duemq_common.config import option
from duemq_migration.steps.throttle import Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrationConfig:
    """Rate and ledger of migrations of a running broker."""

    target_p99_ms: int = option(
        20,
        "migrationLatenessTargetMs",
        "Lateness (p99) of deliveries above which a migration slows down; 0: no limit.",
        minimum=0,
        wire=True,
        own=True,
    )
    factor: int = option(
        2,
        "migrationLatenessFactor",
        "A migration slows down while the lateness (p99) of deliveries exceeds this multiple of "
        "the lateness without a migration; 0: only migrationLatenessTargetMs counts.",
        minimum=0,
        wire=True,
        own=True,
    )
    rate_per_s: int = option(
        0,
        "migrationRate",
        "Maximum messages per second that a migration moves; 0: as many as lateness allows.",
        unit="messages/s",
        minimum=0,
        wire=True,
        own=True,
    )
    ledger_url: str = option(
        "",
        "migrationLedgerUrl",
        "Ledger of migrations: `sqlite:////path/to/file` or `postgresql://user@host/database`; "
        "empty: `duemq.ledger.sqlite` in the store.",
        own=True,
    )

    @property
    def limits(self) -> Limits:
        """Limits of the throttle."""
        return Limits(
            target_p99_ms=self.target_p99_ms, factor=self.factor, rate_per_s=self.rate_per_s
        )
