"""Configuration of an audit: tolerances, delays of levels, trust in clock steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from spark_reconciliation.scan.levels import DEFAULT_LEVELS_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditConfig:
    """Settings of an audit.

    Attributes:
        late_ms: Maximum lateness of a delivery that is ok.
        as_of_ms: Time until which due messages should be delivered. None: the store time of the
            last record, or the slot that the timers had reached, if that is later.
        levels_ms: Delays of levels 1, 2, ..., for messages whose queue has no due time.
        trust_clock: Whether a clock step explains findings: a delivery before its due time is then
            ok, and a message that the timers had passed before the step is pending.
        levels_of: Delays that differ from `levels_ms`, with the numbers of their stores. If empty,
            and `levels_ms` is Apache's default, the audit reads the delays from the stores (except
            behind Spark Connect, where the client may not see the stores).
    """

    late_ms: int = 2_000
    as_of_ms: int | None = None
    trust_clock: bool = False
    levels_ms: tuple[int, ...] = DEFAULT_LEVELS_MS
    levels_of: Mapping[tuple[int, ...], Sequence[int]] = field(default_factory=dict)
