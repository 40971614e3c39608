"""Migrations of levels to timers: their state, commands, limits."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta
from msgspec.structs import asdict

from duemq.http.broker_states import BrokerQuery, master_address, state_problem
from duemq.http.endpoints import Call, Endpoint, JsonObject, invalid

LEVELS_MAX: Final = 1_000
TEXT_MAX: Final = 200

LIMIT_KEYS: Final = {
    "rate_per_s": "migrationRate",
    "lateness_ms": "migrationLatenessTargetMs",
    "factor": "migrationLatenessFactor",
}
"""Configuration keys by the fields of `MigrationLimits`."""

Text = Annotated[str, Meta(max_length=TEXT_MAX)]
Limit = Annotated[int, Meta(ge=0, le=(1 << 31) - 1)]


class MigrationCommand(
    msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """Command of a migration of levels to timers.

    Attributes:
        levels: Levels; empty: all whose state allows the command.
        cause: Reason of the command, for the history.
        plan_id: Plan that a start carries out.
        rules: Delays of single topics in ms, which replace that of the level.
        dry_run: Whether to report the effect without any change.
    """

    action: Literal["plan", "start", "pause", "resume", "rollback", "verify"]
    levels: Annotated[list[Annotated[int, Meta(ge=1)]], Meta(max_length=LEVELS_MAX)] = []
    operator: Text = ""
    cause: Text = ""
    plan_id: Text = ""
    rules: dict[str, int] = {}
    dry_run: bool = False


class MigrationLimits(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Limits of migrations; a limit that is null stays as it is, 0: no limit.

    Attributes:
        rate_per_s: Messages per second.
        lateness_ms: Lateness of deliveries at which migrations slow down.
        factor: The same, as a multiple of the usual lateness.
    """

    rate_per_s: Limit | None = None
    lateness_ms: Limit | None = None
    factor: Limit | None = None


async def show_migrations(call: Call) -> JsonObject:
    """Return the state of the migration of each level at one broker."""
    query: BrokerQuery = call.query or BrokerQuery()
    return {**await call.session.admin.migration_status(await master_address(call, query.broker))}


async def command_migration(call: Call) -> JsonObject:
    """Plan, start, pause, resume, roll back or verify a migration."""
    query: BrokerQuery = call.query or BrokerQuery()
    command: MigrationCommand = call.body
    address = await master_address(call, query.broker)
    with state_problem("The state of the migration does not allow the command"):
        fields = asdict(command) | {"operator": command.operator or call.account}
        result = await call.session.admin.migrate(address, **fields)
    return {**result}


async def change_limits(call: Call) -> MigrationLimits:
    """Change the limits of migrations at one broker, and return all of them."""
    query: BrokerQuery = call.query or BrokerQuery()
    limits = {key: getattr(call.body, name) for name, key in LIMIT_KEYS.items()}
    changes = {key: limit for key, limit in limits.items() if limit is not None}
    if not changes:
        raise invalid("give rate_per_s, lateness_ms or factor")
    address, admin = await master_address(call, query.broker), call.session.admin
    await admin.migration_status(address)  # a replica refuses it
    await admin.update_broker_config(address, changes)
    config = await admin.broker_config(address)
    return MigrationLimits(**{name: int(config[key]) for name, key in LIMIT_KEYS.items()})


ENDPOINTS: Final = (
    Endpoint(
        path="/migrations",
        handler=show_migrations,
        summary="Show the migration of each level to timers.",
        tag="operations",
        query=BrokerQuery,
        result=JsonObject,
        problems=(409,),
    ),
    Endpoint(
        method="POST",
        path="/migrations",
        handler=command_migration,
        summary="Plan, start, pause, resume, roll back or verify a migration.",
        tag="operations",
        query=BrokerQuery,
        body=MigrationCommand,
        result=JsonObject,
        problems=(409,),
    ),
    Endpoint(
        method="POST",
        path="/migrations/limits",
        handler=change_limits,
        summary="Change the limits of migrations.",
        tag="operations",
        query=BrokerQuery,
        body=MigrationLimits,
        result=MigrationLimits,
    ),
)
