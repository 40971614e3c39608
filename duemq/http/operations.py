"""State of the brokers: members, replicas, timers, levels, migrations, audits, configuration, audit
log of operators.

A state that is not known has a reason in `failure` instead of numbers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from duemq.client import Refused
from duemq.client.admin.cluster import BrokerMember
from duemq.client.errors import Unsupported
from duemq.http.broker_states import (
    BrokerState,
    UnknownPart,
    of_members,
    page_of_brokers,
    page_values,
    unknown_of,
    values_of,
    views,
)
from duemq.http.endpoints import Call, Endpoint, JsonObject, invalid
from duemq.http.problems import Problem
from duemq.http.sessions import AccountSession
from duemq.net.view_names import (
    AUDITS_VIEW,
    CONFIGURATION_VIEW,
    LEVELS_VIEW,
    OPERATORS_VIEW,
    REPLICATION_VIEW,
    TIMERS_VIEW,
)
from duemq_common.codes import RequestCode, ResponseCode
from duemq_common.masking import masked

LEVELS_MAX: Final = 1_000
TEXT_MAX: Final = 200
NO_ACCOUNTS: Final = "the broker has no accounts, and so no audit log"
ENTRIES_MAX: Final = 100  # of a page of the audit log

LIMIT_KEYS: Final = {
    "rate_per_s": "migrationRate",
    "lateness_ms": "migrationLatenessTargetMs",
    "factor": "migrationLatenessFactor",
}
"""Configuration keys by the fields of `MigrationLimits`."""

Text = Annotated[str, Meta(max_length=TEXT_MAX)]
Limit = Annotated[int, Meta(ge=0, le=(1 << 31) - 1)]


class BrokerRow(msgspec.Struct, kw_only=True, omit_defaults=True):
    """State of a broker.

    Attributes:
        id: 0: master; null: the broker was given by its address.
        failure: Reason why the state is not known; empty: it is.
        state: State as the broker describes it.
    """

    broker: str
    id: int | None
    address: str
    failure: str = ""
    state: JsonObject = {}


class BrokerRows(msgspec.Struct):
    """States of brokers."""

    brokers: list[BrokerRow]


class BrokerQuery(msgspec.Struct):
    """Name or address of the broker; empty: the only one."""

    broker: Annotated[str, Meta(max_length=255)] = ""


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


def state_of(name: str, view: str, *, masters: bool) -> Callable[[Call], Awaitable[BrokerRows]]:
    """Return the handler that reads a view of every member, or of the masters."""

    async def read(call: Call) -> BrokerRows:
        session = call.session
        members = await (session.masters() if masters else session.members())
        rows = [_row(state) for state in await views(session, members, view)]
        return BrokerRows(rows)

    read.__name__ = f"show_{name}"
    return read


class AuditStart(msgspec.Struct):
    """Address of the broker that audits its store now; `GET /audits` shows the result."""

    broker: str


class AuditsQuery(BrokerQuery):
    """Page of the audits of a broker's store, or of the findings of one.

    Attributes:
        cursor: Cursor of the page before; empty: the first page.
    """

    cursor: Annotated[str, Meta(max_length=255)] = ""


async def list_audits(call: Call) -> JsonObject:
    """Return a page of the audits in the ledger of a broker's store, newest first."""
    return await _stored_audits(call, "")


async def show_audit(call: Call) -> JsonObject:
    """Return an audit with its verdicts, and a page of its findings."""
    return await _stored_audits(call, call.path["name"])


async def _stored_audits(call: Call, audit: str) -> JsonObject:
    query: AuditsQuery = call.query or AuditsQuery()
    address = await _address(call, query.broker)
    with _state_problem("The ledger cannot be read"):
        return await call.session.admin.stored_audits(address, audit=audit, cursor=query.cursor)


async def list_brokers(call: Call) -> BrokerRows:
    """Return every master and replica."""
    states = await of_members(await call.session.members(), _registered)
    return BrokerRows(list(map(_row, states)))


async def _registered(member: BrokerMember) -> JsonObject:
    return {}


def _row(state: BrokerState) -> BrokerRow:
    member = state.member
    return BrokerRow(
        broker=member.name,
        id=member.broker_id,
        address=member.address,
        failure=state.failure,
        state=state.value or {},
    )


async def show_migrations(call: Call) -> JsonObject:
    """Return the state of the migration of each level at one broker."""
    query: BrokerQuery = call.query or BrokerQuery()
    return {**await call.session.admin.migration_status(await _address(call, query.broker))}


async def command_migration(call: Call) -> JsonObject:
    """Plan, start, pause, resume, roll back or verify a migration."""
    query: BrokerQuery = call.query or BrokerQuery()
    command: MigrationCommand = call.body
    address = await _address(call, query.broker)
    with _state_problem("The state of the migration does not allow the command"):
        result = await call.session.admin.migrate(
            address,
            command.action,
            levels=command.levels,
            operator=command.operator or call.account,
            cause=command.cause,
            plan_id=command.plan_id,
            rules=command.rules,
            dry_run=command.dry_run,
        )
    return {**result}


async def change_limits(call: Call) -> MigrationLimits:
    """Change the limits of migrations at one broker, and return all of them."""
    query: BrokerQuery = call.query or BrokerQuery()
    limits = {key: getattr(call.body, name) for name, key in LIMIT_KEYS.items()}
    changes = {key: limit for key, limit in limits.items() if limit is not None}
    if not changes:
        raise invalid("give rate_per_s, lateness_ms or factor")
    address, admin = await _address(call, query.broker), call.session.admin
    await admin.migration_status(address)  # a replica refuses it
    await admin.update_broker_config(address, changes)
    config = await admin.broker_config(address)
    return MigrationLimits(**{name: int(config[key]) for name, key in LIMIT_KEYS.items()})


async def start_audit(call: Call) -> AuditStart:
    """Start an audit of one broker."""
    query: BrokerQuery = call.query or BrokerQuery()
    address = await _address(call, query.broker)
    with _state_problem("The audit cannot start"):
        await call.session.client.ask(address, RequestCode.START_AUDIT)
    return AuditStart(broker=address)


@contextmanager
def _state_problem(title: str) -> Iterator[None]:
    """Raise a problem (409) if the broker refuses the request because of its state."""
    try:
        yield
    except Refused as error:
        if error.code != ResponseCode.SYSTEM_ERROR:
            raise
        raise Problem(409, "state", title, error.remark, code=error.code) from error


async def _address(call: Call, broker: str) -> str:
    """Return the address of the master of a broker, or of the only one."""
    masters = await call.session.masters()
    addresses = [one.address for one in masters if broker in ("", one.name, one.address)]
    if not addresses:
        raise Problem(404, "no-broker", "There is no such broker", broker)
    if len(addresses) > 1:
        names = ", ".join(one.name for one in masters)
        raise invalid(f"there are several brokers: give broker ({names})")
    return addresses[0]


class KeysQuery(msgspec.Struct, kw_only=True):
    """Selection of configuration keys.

    Attributes:
        prefix: Beginning of the keys; upper and lower case are the same.
        changed: Whether only keys are listed that a file, the environment or a command sets.
    """

    prefix: Annotated[str, Meta(max_length=255)] = ""
    changed: bool = False

    def selects(self, key: JsonObject) -> bool:
        """Return whether a key is listed."""
        is_set = key["source"] != ""
        return key["key"].lower().startswith(self.prefix.lower()) and (is_set or not self.changed)


class KeysOfBroker(msgspec.Struct):
    """Keys of one broker, as it describes them: value, default and source; passwords are masked.

    Apache's brokers report values only; the source is null.
    """

    broker: str
    keys: list[JsonObject]


class Configurations(msgspec.Struct):
    """Keys of all masters.

    Attributes:
        unknown: Brokers whose keys are missing.
    """

    brokers: list[KeysOfBroker]
    unknown: list[UnknownPart]


class OperatorsQuery(msgspec.Struct, kw_only=True):
    """Page of the audit log.

    Attributes:
        cursor: Cursor of the page before; empty: the first page.
    """

    limit: Annotated[int, Meta(ge=1, le=ENTRIES_MAX)] = ENTRIES_MAX
    cursor: Annotated[str, Meta(pattern=r"^([0-9]{1,4}\.[0-9]{0,18})?$")] = ""


class PageOfOperators(msgspec.Struct):
    """Requests that changed something, and refused requests, broker by broker, newest first.

    Attributes:
        entries: Entries that the brokers have in memory, as they describe them.
        cursor: Cursor of the next page; null at the end. A page may be empty before the end.
        unknown: Brokers whose entries are missing.
    """

    entries: list[JsonObject]
    cursor: str | None
    unknown: list[UnknownPart]


async def show_configuration(call: Call) -> Configurations:
    """Return the configuration of each master."""
    query: KeysQuery = call.query or KeysQuery()
    session = call.session

    async def part(member: BrokerMember) -> list[JsonObject]:
        return [key for key in await keys_of(session, member) if query.selects(key)]

    states = await of_members(await session.masters(), part)
    values_of(states)
    rows = [KeysOfBroker(one.member.name, one.value) for one in states if one.error is None]
    return Configurations(rows, unknown_of(states))


async def keys_of(session: AccountSession, member: BrokerMember) -> list[JsonObject]:
    """Return the keys of a broker; an Apache broker reports their values only."""
    try:
        keys: list[JsonObject] = (await session.admin.view(member.address, CONFIGURATION_VIEW))[
            "keys"
        ]
    except Unsupported:
        values = await session.admin.broker_config(member.address)
        return [
            {"key": key, "value": masked(key, value), "source": None}
            for key, value in sorted(values.items())
        ]
    return keys


async def list_operators(call: Call) -> PageOfOperators:
    """Return a page of the audit log."""
    query: OperatorsQuery = call.query or OperatorsQuery()
    session = call.session

    async def part(member: BrokerMember, before: str) -> tuple[list[JsonObject], str | None]:
        entries, following = await entries_of(session, member, before, query.limit)
        return [{"broker": member.name, **entry} for entry in entries], following

    page = await page_of_brokers(session, query.cursor, part)
    entries, unknown = page_values(page, query.cursor)
    return PageOfOperators(entries, page.cursor or None, unknown)


async def entries_of(
    session: AccountSession, member: BrokerMember, before: str, count: int
) -> tuple[list[JsonObject], str | None]:
    """Return entries of the audit log of a broker, and the cursor of the next ones.

    Raises:
        Refused: The broker has no accounts, or the account may not read the log.
    """
    try:
        view = await session.admin.view(member.address, OPERATORS_VIEW, before=before, count=count)
    except Refused as error:
        if error.code == ResponseCode.TOPIC_NOT_EXIST:  # there is no such view
            raise Refused(error.code, NO_ACCOUNTS, member.address) from error
        raise
    return view["entries"], None if view["before"] is None else str(view["before"])


VIEWS: Final = (
    ("replicas", REPLICATION_VIEW, False, "Show role, state and lag of every member."),
    ("timers", TIMERS_VIEW, True, "Show counts, lag and rates of the timers."),
    ("levels", LEVELS_VIEW, True, "Show the delay levels and their messages."),
    ("audits", AUDITS_VIEW, True, "Show the scheduled audits and the last result."),
)
"""Path, name of the view, whether only masters have it, summary."""
ENDPOINTS: Final = (
    Endpoint(
        method="GET",
        path="/brokers",
        handler=list_brokers,
        summary="List masters and replicas.",
        tag="operations",
        result=BrokerRows,
    ),
    *[
        Endpoint(
            method="GET",
            path=f"/{name}",
            handler=state_of(name, view, masters=masters),
            summary=summary,
            tag="operations",
            result=BrokerRows,
        )
        for name, view, masters, summary in VIEWS
    ],
    Endpoint(
        method="POST",
        path="/audits",
        handler=start_audit,
        summary="Start an audit of a broker's store, unless one runs.",
        tag="operations",
        query=BrokerQuery,
        result=AuditStart,
        status=202,
        problems=(409,),
    ),
    Endpoint(
        method="GET",
        path="/audit-runs",
        handler=list_audits,
        summary="List the audits of a broker's store, newest first.",
        tag="operations",
        query=AuditsQuery,
        result=JsonObject,
        problems=(409,),
    ),
    Endpoint(
        method="GET",
        path="/audit-runs/{name}",
        handler=show_audit,
        summary="Show an audit with its verdicts, and some messages of each finding.",
        tag="operations",
        query=AuditsQuery,
        result=JsonObject,
        problems=(409,),
    ),
    Endpoint(
        method="GET",
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
    Endpoint(
        method="GET",
        path="/configuration",
        handler=show_configuration,
        summary="Show the configuration of each master, with the source of each value.",
        tag="operations",
        query=KeysQuery,
        result=Configurations,
    ),
    Endpoint(
        method="GET",
        path="/operators",
        handler=list_operators,
        summary="List what operators changed, and refused requests, newest first.",
        tag="operations",
        query=OperatorsQuery,
        result=PageOfOperators,
    ),
)
