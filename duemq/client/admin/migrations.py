"""Migrations of a DueMQ broker from delay levels to timers: plan, start, pause, verify, undo."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypedDict, cast

from delayed_delivery.names import MASTER_FIELD
from duemq.client.admin.cluster import ClusterAdmin
from duemq.client.errors import Refused, Unsupported
from duemq.client.routes import json_object
from duemq_common.codes import RequestCode, ResponseCode

CALL_TIMEOUT_S: Final = 600.0


class LevelMigration(TypedDict):
    """Migration of one level; times are ms since the epoch.

    Attributes:
        state: State of the level: planned, routing, draining, verifying, done, rolling_back, ...
        cause: Reason of a pause.
        blocked_by: Reason why the level does not advance now.
        routed: Whether new messages of the level become timers.
        rules: Delays of single topics in ms.
        moved, returned, remaining: Numbers of messages.
    """

    level: int
    migration: str
    state: str
    paused: bool
    cause: str
    blocked_by: str
    operator: str
    changed_ms: int
    routed: bool
    rules: dict[str, int]
    fence: int
    moved: int
    returned: int
    remaining: int
    verified: dict[str, object] | None


class MigrationStatus(TypedDict):
    """State of the migrations of a broker.

    Attributes:
        active: Levels that move.
        late_p50_ms, late_p99_ms: Lateness of deliveries; None: none yet.
        throttle: Limits of rate and lateness.
        ledger: Where migrations are recorded, and what prevents it.
    """

    active: list[int]
    levels: list[LevelMigration]
    rate_per_s: float
    late_p50_ms: int | None
    late_p99_ms: int | None
    throttle: dict[str, Any]
    ledger: dict[str, Any]
    routed: int
    unrenamed: int


class MigrationResult(TypedDict, total=False):
    """Result of a command.

    Attributes:
        levels: Levels that the command applied to.
        remarks: Remarks by level.
        plan: Plan, of the action `plan`.
        right, verified: Whether counts agree, and the counts of each level, of the action `verify`.
        status: State after the command.
    """

    action: str
    dry_run: bool
    migration: str
    levels: list[int]
    remarks: dict[str, str]
    plan: dict[str, Any]
    right: bool
    verified: list[dict[str, Any]]
    status: MigrationStatus


class IsReplica(Refused):
    """Refusal of a replica; `master` is the `host:port` of its master, empty if it is unknown."""

    def __init__(self, code: int, remark: str, address: str, master: str) -> None:
        super().__init__(code, remark, address)
        self.master = master


class MigrationsAdmin(ClusterAdmin):
    """Requests about migrations; each goes to the master of one broker group."""

    async def migration_status(self, address: str) -> MigrationStatus:
        """Return the state of every level.

        Raises:
            IsReplica: The broker is a replica.
            Unsupported: The broker does not have migrations.
        """
        return cast(MigrationStatus, await self._migrate(address, {"action": "status"}))

    async def migrate(
        self,
        address: str,
        action: str,
        *,
        levels: Sequence[int] = (),
        operator: str = "",
        cause: str = "",
        plan_id: str = "",
        rules: Mapping[str, int] | None = None,
        dry_run: bool = False,
    ) -> MigrationResult:
        """Plan, start, pause, resume, verify or roll back the migration of levels.

        Args:
            action: `plan`, `start`, `pause`, `resume`, `verify` or `rollback`.
            levels: Levels; none: all whose state allows the action.
            operator: User for the record of the migration.
            cause: Reason of a pause.
            plan_id: Saved plan to start.
            rules: Delays of single topics in ms, which replace that of the level.
            dry_run: Whether to return the effect without any change.
        Raises:
            IsReplica: The broker is a replica.
            Refused: The broker refused the action.
            Unsupported: The broker does not have migrations.
        """
        command = {
            "action": action,
            "levels": list(levels),
            "operator": operator,
            "cause": cause,
            "plan_id": plan_id,
            "rules": dict(rules or {}),
            "dry_run": dry_run,
        }
        return cast(MigrationResult, await self._migrate(address, command))

    async def _migrate(self, address: str, command: dict[str, object]) -> dict[str, object]:
        body, code = json.dumps(command).encode(), RequestCode.MIGRATE
        response = await self.client.call(address, code, body=body, timeout_s=CALL_TIMEOUT_S)
        if response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise Unsupported(f"{address} is not a DueMQ broker with migrations")
        if (master := (response.fields or {}).get(MASTER_FIELD)) is not None:
            raise IsReplica(response.code, response.remark or "", address, master)
        if response.code != ResponseCode.SUCCESS:
            raise self.client.refusal(response, address, code)
        return json_object(response)
