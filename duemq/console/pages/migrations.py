"""Migrations of levels to timers: progress of every broker, and commands after a confirmation."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

from duemq.client.admin.cluster import BrokerMember
from duemq.client.admin.migrations import LevelMigration, MigrationResult, MigrationStatus
from duemq.client.errors import Refused
from duemq.console.blocks import Cell, Field, Form, Key, Notice, PageContent, Table, Tile, Tiles
from duemq.console.brokers import unknown_parts
from duemq.console.call import PageCall
from duemq.console.logins import LoginRole
from duemq.console.pages.message import state_cell
from duemq.http.broker_states import of_masters, value_of
from duemq.http.brokers.migrations import LIMIT_KEYS
from duemq.http.endpoints import JsonObject, invalid
from duemq.http.problems import Problem

COMMANDS: Final = ("plan", "start", "pause", "resume", "rollback", "verify")
THROTTLE: Final = "throttle"
LIMITS: Final = dict(zip(("rate", "lateness", "factor"), LIMIT_KEYS.values(), strict=True))
"""Configuration keys by the name of the form's field."""
LEVELS: Final = (
    "broker",
    "level",
    "phase",
    "moved",
    "remaining",
    "returned",
    "progress",
    "new_messages",
    "reason",
)
BROKERS: Final = ("broker", "moved_rate", "rate_limit", "late_p99", "late_limit", "ledger")
PLANNED: Final = ("level", "delay", "messages", "overdue", "unit_bytes", "estimate")
VERIFIED: Final = ("level", "moved", "returned", "pending", "settled", "removed", "verdict")


async def migrations(call: PageCall) -> PageContent:
    """Return the progress of the migrations of all brokers."""
    is_admin = call.login.role >= LoginRole.ADMIN

    async def part(member: BrokerMember) -> tuple[list[list[Cell]], list[Cell]]:
        status = await call.session.admin.migration_status(member.address)
        rows = [_level_row(member.name, level) for level in status["levels"]]
        return rows, _broker_row(member.name, status, is_admin=is_admin)

    states = await of_masters(call.session, part)
    unknown = unknown_parts(states)
    empty = Key("value.unknown" if unknown else "migrations.none")
    rows = [row for state in states if not state.error for row in state.value[0]]
    levels = Table(Key("migrations.levels"), LEVELS, rows, empty)
    rows = [
        [Cell(state.member.name), *[Cell(None)] * (len(BROKERS) - 1)]
        if state.error
        else state.value[1]
        for state in states
    ]
    brokers = Table(Key("migrations.brokers"), BROKERS, rows)
    return PageContent(Key("nav.migrations"), [*unknown, levels, brokers], live=True)


async def commands(call: PageCall) -> PageContent:
    """Return the forms that lead to the confirmation of a command for one broker."""
    member = await _broker(call, call.path["name"])

    async def part(one: BrokerMember) -> tuple[Tiles, list[Field]]:
        status = await call.session.admin.migration_status(one.address)
        config = await call.session.admin.broker_config(one.address)
        limits = [
            Field(name, Key(f"migrations.{name}"), config.get(key, ""), "number")
            for name, key in LIMITS.items()
        ]
        return _tiles(status), limits

    tiles, limits = await value_of(member, part)
    hidden = [("broker", member.name)]
    levels = Field("levels", Key("migrations.level_list"))
    started = Field("levels", Key("migrations.started_levels"))
    more = {
        "start": [
            Field("plan_id", Key("migrations.plan_id")),
            Field("rules", Key("migrations.rules")),
        ],
        "pause": [Field("cause", Key("column.reason"))],
    }
    forms = [
        Form(
            Key(f"migrations.{action}"),
            "/migration-commands",
            [started if action == "start" else levels, *more.get(action, [])],
            hidden=[*hidden, ("action", action)],
            title=Key(f"migrations.{action}_title"),
        )
        for action in COMMANDS
    ]
    action = [*hidden, ("action", THROTTLE)]
    title = Key("migrations.throttle_title")
    throttle = Form(
        Key("migrations.throttle"), "/migration-commands", limits, hidden=action, title=title
    )
    blocks = [tiles, *forms, throttle]
    return PageContent(Key("migrations.commands"), blocks, member.name)


async def confirmation(call: PageCall) -> PageContent:
    """Return what a command will do, with the form that confirms it."""
    member, action = await _broker(call, call.query.get("broker", "")), _action(call)
    names = ("broker", "action", "levels", "plan_id", "rules", "cause", *LIMITS)
    hidden = [(name, call.query[name]) for name in names if call.query.get(name)]
    if action == THROTTLE:
        changes = _limits(call)
        config = await call.session.admin.broker_config(member.address)
        effect = _changes_table(config, changes)
        has_effect = any(config.get(key) != value for key, value in changes.items())
        blocks: list[object] = [effect]
    else:
        try:
            result = await _command(call, member, action, dry_run=True)
        except Refused as error:
            return _refused(member, action, error)
        blocks = _result_blocks(result)
        has_effect = action == "plan" or bool(result["levels"])
    if action != "verify" and has_effect:
        label, title = Key(f"migrations.{action}"), Key("decision.confirm")
        blocks.insert(0, Form(label, "/migration-commands", [], "post", hidden, title))
    elif not has_effect:
        blocks.insert(0, Notice(Key("migrations.no_effect"), "", "bad"))
    return PageContent(Key(f"migrations.{action}_title"), blocks, member.name)


async def command(call: PageCall) -> PageContent:
    """Carry out a command, and return its result."""
    member, action = await _broker(call, call.query.get("broker", "")), _action(call)
    if action == THROTTLE:
        changes = _limits(call)
        await call.session.admin.migration_status(member.address)  # a replica refuses it
        await call.session.admin.update_broker_config(member.address, changes)
        config = await call.session.admin.broker_config(member.address)
        blocks: list[object] = [_changes_table(config, changes)]
    else:
        try:
            blocks = _result_blocks(await _command(call, member, action, dry_run=False))
        except Refused as error:
            return _refused(member, action, error)
    notice = Notice(Key("migrations.done"), "", "good")
    return PageContent(Key(f"migrations.{action}_title"), [notice, *blocks], member.name)


def _refused(member: BrokerMember, action: str, refusal: Refused) -> PageContent:
    """Return the page of a command that the broker refuses."""
    notice = Notice(Key("migrations.refused"), refusal.remark, "bad")
    return PageContent(Key(f"migrations.{action}_title"), [notice], member.name)


async def _broker(call: PageCall, name: str) -> BrokerMember:
    for member in await call.session.masters():
        if member.name == name:
            return member
    raise Problem(404, "no-broker", "There is no such broker", name)


def _action(call: PageCall) -> str:
    action = call.query.get("action", "")
    if action not in (*COMMANDS, THROTTLE):
        raise invalid("the command is not one of the migrations")
    return action


async def _command(
    call: PageCall, member: BrokerMember, action: str, *, dry_run: bool
) -> MigrationResult:
    return await call.session.admin.migrate(
        member.address,
        action,
        levels=_levels(call),
        operator=call.login.name,
        cause=call.query.get("cause", "").strip() if action == "pause" else "",
        plan_id=call.query.get("plan_id", "").strip() if action == "start" else "",
        rules=_rules(call) if action == "start" else {},
        dry_run=dry_run,
    )


def _levels(call: PageCall) -> list[int]:
    words = call.query.get("levels", "").replace(",", " ").split()
    if not all(word.isascii() and word.isdigit() and len(word) < 5 for word in words):
        raise invalid("levels are numbers, separated by blanks")
    if not words and call.query.get("action") == "start" and not call.query.get("plan_id"):
        raise invalid("no levels selected: give levels, or a saved plan")
    return [int(word) for word in words]


def _rules(call: PageCall) -> dict[str, int]:
    """Return the delays of single topics in ms: `orders=90000`, separated by blanks."""
    rules: dict[str, int] = {}
    for word in call.query.get("rules", "").split():
        topic, equals, delay = word.partition("=")
        if not (topic and equals and delay.isascii() and delay.isdigit() and len(delay) < 13):
            raise invalid(f"{word[:80]!r} is not TOPIC=MILLISECONDS")
        rules[topic] = int(delay)
    return rules


def _limits(call: PageCall) -> dict[str, str]:
    changes = {
        key: str(call.number(name, 0)) for name, key in LIMITS.items() if call.query.get(name)
    }
    if not changes:
        raise invalid("no limit is given")
    return changes


def _changes_table(config: dict[str, str], changes: dict[str, str]) -> Table:
    rows = [[Cell(key, "code"), Cell(config.get(key)), Cell(text)] for key, text in changes.items()]
    return Table(Key("resend.effect"), ("key", "value", "new_value"), rows)


def _broker_row(broker: str, status: MigrationStatus, *, is_admin: bool) -> list[Cell]:
    throttle: JsonObject = status.get("throttle") or {}
    return [
        Cell(broker, link=f"/migrations/{quote(broker, safe='')}" if is_admin else ""),
        Cell(status["rate_per_s"], "number"),
        _limit_cell(throttle.get("rate_per_s")),
        _lateness_cell(status),
        Cell(throttle.get("target_now_ms"), "ms"),
        Cell((status.get("ledger") or {}).get("trouble", ""), "words"),
    ]


def _lateness_cell(status: MigrationStatus) -> Cell:
    """Return the lateness of deliveries; there is none before the first one."""
    late_ms = status["late_p99_ms"]
    return Cell("value.none", "key") if late_ms is None else Cell(late_ms, "ms")


def _limit_cell(limit: int | None) -> Cell:
    return Cell("migrations.no_limit", "key") if limit == 0 else Cell(limit, "number")


def _level_row(broker: str, level: LevelMigration) -> list[Cell]:
    moved = level["returned"] if level["state"] == "rolling_back" else level["moved"]
    share = 100 * moved // max(moved + level["remaining"], 1)
    return [
        Cell(broker),
        Cell(level["level"], "number"),
        Cell("state.paused", "key", state="bad") if level["paused"] else state_cell(level["state"]),
        Cell(level["moved"], "number"),
        Cell(level["remaining"], "number"),
        Cell(level["returned"], "number"),
        Cell(f"{share} %"),
        Cell("column.timers" if level["routed"] else "column.levels", "key"),
        Cell(level["cause"] or level["blocked_by"], "words"),
    ]


def _tiles(status: MigrationStatus) -> Tiles:
    return Tiles(
        [
            Tile(Key("column.moved_rate"), Cell(status["rate_per_s"], "number")),
            Tile(Key("column.late_p99"), _lateness_cell(status)),
            Tile(Key("migrations.active"), Cell(len(status["active"]), "number")),
        ]
    )


def _result_blocks(result: MigrationResult) -> list[object]:
    """Return the levels, remarks, plan and verified counts of a result."""
    names = ", ".join(str(level) for level in result["levels"])
    tiles = [Tile(Key("column.levels"), Cell(names or "value.none", "text" if names else "key"))]
    blocks: list[object] = [Tiles(tiles)]
    for level, text in (result.get("remarks") or {}).items():
        blocks.append(Notice(Key("migrations.remark"), f"{level}: {text}"))
    if plan := result.get("plan"):
        blocks += _plan_blocks(plan)
    if verified := result.get("verified"):
        rows = [_verified_row(level) for level in verified]
        blocks.append(Table(Key("migrations.verified"), VERIFIED, rows))
    return blocks


def _plan_blocks(plan: JsonObject) -> list[object]:
    rows = [
        [
            Cell(level["level"], "number"),
            Cell(level["delay_ms"], "ms"),
            Cell(level["pending"], "number"),
            Cell(level["overdue"], "number"),
            Cell(level["unit_bytes"], "bytes"),
            Cell(level["estimate_ms"], "ms"),
        ]
        for level in plan["levels"]
        if level["pending"]
    ]
    blocks: list[object] = [
        Notice(
            Key("migrations.obstacle" if one["blocks"] else "migrations.remark"),
            f"{'' if one['level'] is None else one['level']} {one['text']}",
            "bad" if one["blocks"] else "",
        )
        for one in plan["obstacles"]
    ]
    if plan["plan_id"]:
        blocks.append(Notice(Key("migrations.plan_id"), plan["plan_id"]))
    return [*blocks, Table(Key("migrations.plan"), PLANNED, rows)]


def _verified_row(level: JsonObject) -> list[Cell]:
    is_right = level["right"]
    verdict = "migrations.agree" if is_right else level["text"]
    numbers = ("transferred", "returned", "timers_pending", "settled", "removed")
    return [
        Cell(level["level"], "number"),
        *(Cell(level[name], "number") for name in numbers),
        Cell(verdict, "key" if is_right else "words", state="good" if is_right else "bad"),
    ]
