"""Configuration section of audits that the broker starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from duemq_common.config import option
from duemq_common.errors import ConfigError

if TYPE_CHECKING:
    from apscheduler.triggers.cron import CronTrigger

CRON_KEY: Final = "reconcileCron"
FIELDS: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileConfig:
    """Schedule, resources and report of the audits that the broker starts."""

    cron: str = option(
        "",
        CRON_KEY,
        "Schedule of audits: minute, hour, day, month, weekday as in a crontab, and optionally a "
        "time zone, as in `30 3 * * * Europe/Berlin`; empty: never.",
        live=True,
        own=True,
    )
    late_ms: int = option(
        2_000,
        "reconcileLateMs",
        "Maximum lateness of a delivery that an audit accepts.",
        minimum=0,
        wire=True,
        own=True,
    )
    cores: int = option(
        1,
        "reconcileCores",
        "Tasks that an audit runs in parallel, at the lowest priority.",
        minimum=1,
        maximum=1_024,
        wire=True,
        own=True,
    )
    memory: str = option(
        "1g",
        "reconcileMemory",
        "Memory of an audit's Java process, as in `1g`.",
        live=True,
        own=True,
    )
    minutes_max: int = option(
        360,
        "reconcileMinutesMax",
        "Maximum duration of an audit; a longer audit is ended and reported as failed to run.",
        unit="min",
        minimum=1,
        wire=True,
        own=True,
    )
    report: str = option(
        "",
        "reconcileReport",
        "File for the HTML report of each audit; empty: none.",
        live=True,
        own=True,
    )
    ledger_url: str = option(
        "",
        "reconcileLedgerUrl",
        "Ledger of audits: `sqlite:////path/to/file` or `postgresql://user@host/database`; empty: "
        "`duemq.ledger.sqlite` in the store.",
        live=True,
        own=True,
    )

    def __post_init__(self) -> None:
        self.trigger()

    def trigger(self) -> CronTrigger | None:
        """Return the trigger of the audits, or None if there is no schedule.

        Raises:
            ConfigError: The schedule is malformed.
        """
        words = self.cron.split()
        if not words:
            return None
        from apscheduler.triggers.cron import CronTrigger

        zone: dict[str, object] = {"timezone": words[FIELDS]} if len(words) == FIELDS + 1 else {}
        try:
            fields = words[:FIELDS] if zone else words
            return CronTrigger.from_crontab(" ".join(fields), **zone)
        except (ValueError, LookupError) as error:
            reason = f"not a crontab time ({error}); example: `30 3 * * *` is every day at 03:30"
            raise ConfigError(CRON_KEY, self.cron, reason) from error
