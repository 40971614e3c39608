"""Plan of a migration: volume, obstacles and estimates.

A plan is the result of a count, which changes nothing. It is valid for one store and for the delays
of the levels at the time of the count; `check` refuses it otherwise. Its text is JSON, so it can be
reviewed and archived.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

import msgspec

from duemq_common.errors import UsageError
from duemq_common.ledger.records import LedgerRecord, Row

PLAN_BYTES_MAX: Final = 1 << 20
AGE_MS_MAX: Final = 7 * 86_400_000
"""Maximum age of a plan; messages of an older plan are delivered or overdue."""


class ObstacleKind(StrEnum):
    """Kind of an obstacle."""

    DUE_WHILE_RUNNING = "due_while_running"  # delivered by the level before it is drained
    UNREADABLE = "unreadable"  # stays with the level, which sends it to quarantine
    NEAR_RETENTION = "near_retention"  # in a file that retention would remove next
    HAS_CRC = "has_crc"  # the record has a checksum of its properties and stays unchanged
    BEYOND_WINDOW = "beyond_window"  # due beyond the roll window, and drained later
    NO_ROOM = "no_room"  # the disk has no room for the timer units


@dataclass(frozen=True, slots=True, kw_only=True)
class Obstacle:
    """Obstacle of a plan.

    Attributes:
        level: Level that it concerns, None for all levels.
        count: Number of messages that it concerns, 0 if none.
        text: Meaning and remedy.
        blocks: Whether it prevents the start of the migration.
    """

    kind: ObstacleKind
    level: int | None = None
    count: int = 0
    text: str = ""
    blocks: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedLevel:
    """Counts of one level.

    Attributes:
        delay_ms: Delay of the level when the plan was made.
        pending: Exact number of pending messages.
        pending_bytes: Bytes of their records in the commit log, which are not copied.
        first_due_ms: Due time of the first message, None if none is pending.
        overdue: Messages due before the plan was made.
        unit_bytes: Bytes of their timer units on the disk.
        estimate_ms: Estimated duration of draining without throttle.
    """

    level: int
    delay_ms: int
    pending: int = 0
    pending_bytes: int = 0
    first_due_ms: int | None = None
    last_due_ms: int | None = None
    overdue: int = 0
    unit_bytes: int = 0
    estimate_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(LedgerRecord):
    """Plan: saved result of a dry run.

    Attributes:
        store_id: Id of its store.
        log_end: End of the commit log at the time of the count.
    """

    TABLE = "duemq_plans"
    KEY = ("plan_id",)

    plan_id: str
    store_id: str
    made_ms: int
    made_by: str
    log_end: int = 0
    levels: list[PlannedLevel] = field(default_factory=list)
    obstacles: list[Obstacle] = field(default_factory=list)

    @property
    def blocked(self) -> list[Obstacle]:
        """Obstacles that prevent the start."""
        return [obstacle for obstacle in self.obstacles if obstacle.blocks]

    def parts(self) -> dict[str, list[Row]]:
        """Return the ledger's rows of levels and obstacles."""
        obstacles = [asdict(item) | {"position": n} for n, item in enumerate(self.obstacles)]
        levels = [asdict(level) for level in self.levels]
        return {"duemq_plan_levels": levels, "duemq_plan_obstacles": obstacles}


class PlanError(UsageError):
    """Error: a plan cannot be used; the text has the plan, the reason and the remedy."""

    def __init__(self, plan_id: str, reason: str) -> None:
        self.plan_id, self.reason = plan_id, reason
        super().__init__(f"plan {plan_id}: {reason}. Make a new one with `duemq migrate plan`")


def new_id(kind: str, now_ms: int, salt: bytes) -> str:
    """Return a short id that sorts by time: `plan-20261121-163000-1f2e`.

    Args:
        kind: `plan`, `run` or `offline`.
        salt: Two random bytes.
    """
    now = datetime.fromtimestamp(now_ms / 1_000, UTC)
    return f"{kind}-{now:%Y%m%d-%H%M%S}-{salt[:2].hex()}"


def to_json(plan: Plan) -> str:
    """Return a plan as JSON, one field per line."""
    return msgspec.json.format(msgspec.json.encode(plan), indent=2).decode() + "\n"


def from_json(text: str | bytes, *, source: str = "the text") -> Plan:
    """Return the plan that `to_json` wrote.

    Raises:
        PlanError: The text is not a plan, or a plan of another version.
    """
    if len(text) > PLAN_BYTES_MAX:
        raise PlanError("?", f"{source} is longer than {PLAN_BYTES_MAX} bytes")
    try:
        return msgspec.json.decode(text, type=Plan)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise PlanError("?", f"{source} is not a plan ({error})") from error


def check(
    plan: Plan,
    *,
    store_id: str,
    delays_ms: Mapping[int, int],
    now_ms: int,
    levels: Iterable[int] | None = None,
) -> None:
    """Raise unless a plan is valid for this store, these delays and this time.

    Args:
        delays_ms: Level to its current delay.
        levels: Levels to be started, None for all of the plan.

    Raises:
        PlanError: The plan cannot be used.
    """
    planned = {level.level: level for level in plan.levels}
    if plan.store_id != store_id:
        reason = f"it was made for store {plan.store_id}, this is store {store_id}"
        raise PlanError(plan.plan_id, reason)
    if now_ms < plan.made_ms:
        late_s = (plan.made_ms - now_ms) / 1_000
        reason = f"it was made {late_s:.0f} s in the future: the clock was set back"
        raise PlanError(plan.plan_id, reason)
    if now_ms - plan.made_ms > AGE_MS_MAX:
        days = (now_ms - plan.made_ms) // 86_400_000
        raise PlanError(
            plan.plan_id, f"it is {days} days old, and its messages have been delivered"
        )
    for level in planned if levels is None else levels:
        if level not in planned:
            names = ", ".join(map(str, sorted(planned))) or "none"
            raise PlanError(plan.plan_id, f"level {level} is not in it (its levels: {names})")
        if level not in delays_ms:
            raise PlanError(plan.plan_id, f"level {level} no longer exists in messageDelayLevel")
        if delays_ms[level] != planned[level].delay_ms:
            reason = (
                f"level {level} meant {planned[level].delay_ms} ms when it was made and means "
                f"{delays_ms[level]} ms now"
            )
            raise PlanError(plan.plan_id, reason)
    if plan.blocked:
        raise PlanError(plan.plan_id, "; ".join(item.text for item in plan.blocked))
