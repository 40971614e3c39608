"""Configuration of an audit: tolerances, delays of levels, trust in clock steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from reconciliation.scan.levels import DEFAULT_LEVELS_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditConfig:
    """What an audit takes for granted.

    Attributes:
        late_ms: a delivery may come so much later than its due time and is ok.
        as_of_ms: what is due until then should be delivered; None: when the store's last record
            was stored, or the slot that its timers had come to, if that is later.
        levels_ms: delays of levels 1, 2, ...: if a queue has no due time.
        trust_clock: a delivery before its time is ok if the log shows that the clock was set back
            between put and delivery, and what the timers had passed by before that is pending.
        levels_of: other delays, and the numbers of the stores that have them. Empty, with Apache's
            default: those of the stores (not behind Spark Connect: the client may not see them).
    """

    late_ms: int = 2_000
    as_of_ms: int | None = None
    trust_clock: bool = False
    levels_ms: tuple[int, ...] = DEFAULT_LEVELS_MS
    levels_of: Mapping[tuple[int, ...], Sequence[int]] = field(default_factory=dict)
