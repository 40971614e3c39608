"""Configuration section of audits that the broker starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from message_store.config import option
from message_store.errors import ConfigError

if TYPE_CHECKING:
    from apscheduler.triggers.cron import CronTrigger

CRON_KEY: Final = "reconcileCron"
FIELDS: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileConfig:
    """Audits by the clock: when, how much of the machine, and where that is told."""

    cron: str = option(
        "",
        key=CRON_KEY,
        doc="When the store is audited: minute, hour, day, month, weekday as in a crontab, and a "
        "time zone if wanted, as in `30 3 * * * Europe/Berlin`; empty: never.",
        own=True,
        live=True,
    )
    late_ms: int = option(
        2_000,
        key="reconcileLateMs",
        doc="A delivery may come so much later than its time and is ok.",
        unit="ms",
        minimum=0,
        own=True,
        live=True,
        wire=True,
    )
    cores: int = option(
        1,
        key="reconcileCores",
        doc="Tasks that an audit runs at once, at the lowest priority.",
        minimum=1,
        maximum=1_024,
        own=True,
        live=True,
        wire=True,
    )
    memory: str = option(
        "1g",
        key="reconcileMemory",
        doc="Memory of an audit's Java process, as in `1g`.",
        own=True,
        live=True,
    )
    minutes_max: int = option(
        360,
        key="reconcileMinutesMax",
        doc="An audit that takes longer is ended, and told as one that could not run.",
        unit="min",
        minimum=1,
        own=True,
        live=True,
        wire=True,
    )
    report: str = option(
        "",
        key="reconcileReport",
        doc="File that each audit writes its report to, as HTML; empty: none.",
        own=True,
        live=True,
    )
    ledger_url: str = option(
        "",
        key="reconcileLedgerUrl",
        doc="Where audits are told of: `sqlite:////path/to/file` or "
        "`postgresql://user@host/database`; empty: `duemq.ledger.sqlite` beside the store.",
        own=True,
        live=True,
    )

    def __post_init__(self) -> None:
        self.trigger()

    def trigger(self) -> CronTrigger | None:
        """Return when audits are made, None: never.

        Raises:
            ConfigError: It cannot be understood.
        """
        words = self.cron.split()
        if not words:
            return None
        from apscheduler.triggers.cron import CronTrigger

        zone: dict[str, Any] = {"timezone": words[FIELDS]} if len(words) == FIELDS + 1 else {}
        try:
            fields = words[:FIELDS] if zone else words
            return CronTrigger.from_crontab(" ".join(fields), **zone)
        except (ValueError, LookupError) as error:
            why = f"no time of a crontab ({error}); as in `30 3 * * *`: every day at half past 3"
            raise ConfigError(CRON_KEY, self.cron, why) from error
