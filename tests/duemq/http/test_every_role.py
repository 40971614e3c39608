"""Every operation of the API by every role: refused or permitted as over the remoting protocol."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import httpx

from duemq.auth.signature import Credentials
from duemq.broker.broker import Broker
from duemq.client import Admin, Message, PendingDecisions, Producer
from duemq.client.admin.schedules import definition_from
from duemq.client.admin.topics import TopicSettings
from duemq.http.api import endpoints
from duemq.http.tokens import Tokens
from duemq_common.clock import SystemClock
from tests.duemq.client.admin.test_admin import make_dead_letter, until_quarantined
from tests.duemq.http.rig import api
from tests.support.accounts import KEYS, ROOT, Step, user_steps
from tests.support.running_broker import TIMEOUT_S

READ: Final = ("Get", "List")
CLUSTER: Final[dict[str, Iterable[str]]] = {"Cluster:DefaultCluster": READ}
VIEWER, OPERATOR, ORDERS, OTHER = (
    Credentials(name, f"{name}-secret") for name in ("viewer", "operator", "orders", "other")
)
PERMISSIONS: Final[dict[Credentials, dict[str, Iterable[str]]]] = {
    VIEWER: CLUSTER | {"Topic:*": READ, "Group:*": READ},
    OPERATOR: CLUSTER
    | {"Topic:*": (*READ, "Pub", "Sub", "Update"), "Group:*": (*READ, "Sub", "Update")},
    ORDERS: {"Topic:orders": ("Pub", "Sub", "Get", "Update"), "Group:g": ("Sub", "Get", "Update")},
    OTHER: {"Topic:other": ("Pub", "Sub", "Get", "Update"), "Group:h": ("Sub", "Get", "Update")},
}
ROLES: Final = (*PERMISSIONS, ROOT)
"""Accounts, those with fewer permissions first."""
EVERY: Final = frozenset(ROLES)
READERS: Final = frozenset({VIEWER, OPERATOR, ROOT})
WRITERS: Final = frozenset({OPERATOR, ORDERS, ROOT})
OPERATORS: Final = frozenset({OPERATOR, ROOT})
ADMINS: Final = frozenset({ROOT})
HOUR_MS: Final = 3_600_000
MINUTE_MS: Final = 60_000
HOUR: Final = timedelta(milliseconds=HOUR_MS)
SCHEDULE: Final = {
    "name": "made-ROLE",
    "topic": "orders",
    "every_ms": HOUR_MS,
    "start_ms": SystemClock().now_ms() + 24 * HOUR_MS,  # the next full hour may be near
    "body": "Yg==",
}
UNCHECKED: Final = {"transactionCheckInterval": str(24 * HOUR_MS)}
"""Checks of transactions commit offsets of their own."""
DECISIONS: Final = ("cancel", "move", "fire")
SINCE, UNTIL = "2026-01-01T00:00:00Z", "2026-01-01T03:00:00Z"
CHANGES: Final = ("pause", "resume", "trigger", "delete")


@dataclass(frozen=True, slots=True)
class Row:
    """Request of an operation.

    Attributes:
        operation: Method and path, as in the OpenAPI document.
        permitted: Accounts that may do it.
        body, path, key: Of the request. `ROLE` and `NUMBER` stand for the name and number of the
            account, `ANOTHER` for an offset that the account before did not set.
        problem: Status for permitted accounts, if what they request does not exist.
        is_change: Whether the state of the broker shows that it was done.
    """

    operation: str
    permitted: frozenset[Credentials]
    body: Any = None
    path: str = ""
    key: str = ""
    is_change: bool = False
    problem: int = 0


ROWS: Final = (
    Row("POST /tokens", EVERY),
    Row("POST /messages", WRITERS, {"topic": "orders", "body": "b"}, is_change=True),
    Row("POST /messages", WRITERS, {"topic": "orders", "body": "b", "level": 18}, is_change=True),
    Row("POST /messages", WRITERS, {"topic": "orders", "body": "b"}, key="k-ROLE", is_change=True),
    Row(
        "POST /messages/batch",
        WRITERS,
        {"messages": [{"topic": "orders", "body": "b", "delay_ms": HOUR_MS}] * 2},
        is_change=True,
    ),
    Row("GET /pending", READERS),
    Row("GET /pending", READERS, path="/pending?topic=orders&kind=timers"),
    *(
        Row(
            f"POST /pending/{decision}",
            WRITERS,
            {"keys": [f"{decision}-ROLE"], "topic": "orders"}
            | ({"delay_ms": HOUR_MS * 2} if decision == "move" else {}),
            is_change=True,
        )
        for decision in DECISIONS
    ),
    *(
        Row(
            f"POST /pending/{decision}",
            ADMINS,
            {"keys": [f"{decision}-anywhere"]}
            | ({"delay_ms": HOUR_MS * 2} if decision == "move" else {}),
            is_change=True,
        )
        for decision in DECISIONS
    ),
    Row("GET /messages/{name}", READERS, path="/messages/cancel-ROLE"),
    Row("GET /quarantine", OPERATORS),
    Row(
        "POST /quarantine/resend",
        OPERATORS,
        {"names": ["test/NUMBER"], "to_topic": "orders"},
        is_change=True,
    ),
    Row("GET /dead-letters", READERS),
    Row("GET /dead-letters/{name}", OPERATORS, path="/dead-letters/g"),
    Row(
        "POST /dead-letters/{name}/resend",
        OPERATORS,
        {"names": ["test/NUMBER"]},
        path="/dead-letters/g/resend",
        is_change=True,
    ),
    Row("GET /schedules", READERS),
    Row("GET /schedules/{name}", READERS, path="/schedules/pause-ROLE"),
    Row("POST /schedules", OPERATORS, SCHEDULE, is_change=True),
    *(
        Row(
            f"POST /schedules/{{name}}/{change}"
            if change != "delete"
            else "DELETE /schedules/{name}",
            OPERATORS,
            path=f"/schedules/{change}-ROLE" + (f"/{change}" if change != "delete" else ""),
            is_change=True,
        )
        for change in CHANGES
    ),
    Row(
        "POST /schedules/{name}/backfill",
        OPERATORS,
        {"since": SINCE, "until": UNTIL},
        path="/schedules/pause-ROLE/backfill",
        is_change=True,
    ),
    Row("GET /topics", READERS),
    Row("POST /topics", ADMINS, {"name": "topic-ROLE"}, is_change=True),
    Row("GET /topics/{name}", READERS | {ORDERS}, path="/topics/orders"),
    Row("GET /groups", READERS),
    Row("GET /groups/{name}", READERS, path="/groups/g"),
    Row("GET /groups/{name}/lag", READERS, path="/groups/g/lag"),
    Row(
        "POST /groups/{name}/offsets",
        OPERATORS,
        {"topic": "orders", "to": "ANOTHER"},
        path="/groups/g/offsets",
        is_change=True,
    ),
    Row("GET /brokers", EVERY),
    *(Row(f"GET /{view}", READERS) for view in ("replicas", "timers", "levels", "audits")),
    *(Row(f"GET /{view}", READERS) for view in ("forecast", "deliveries", "configuration")),
    Row("GET /operators", ADMINS),
    Row("GET /audit-runs", READERS),
    Row("GET /audit-runs/{name}", READERS, path="/audit-runs/none", problem=404),
    Row("POST /audits", ADMINS),
    Row("GET /migrations", ADMINS),
    Row("POST /migrations", ADMINS, {"action": "plan", "levels": [3], "dry_run": True}),
    Row("POST /migrations/limits", ADMINS, {"rate_per_s": 500}),
    Row("DELETE /tokens", EVERY),
)


async def delivered(broker: Broker) -> None:
    """Wait until triggered occurrences are delivered; other timers are due in an hour or later."""
    timers = broker.plugins.plugins["timer_store"].parts.timers  # type: ignore[attr-defined]
    later_ms = timers.clock.now_ms() + MINUTE_MS
    async with asyncio.timeout(TIMEOUT_S):
        while timers.delivered_ms(later_ms) < later_ms:  # noqa: ASYNC110
            await asyncio.sleep(0)


def state_of(broker: Broker) -> dict[str, str]:
    """Return all state that the operations change."""
    parts = broker.parts
    found = {
        "log": parts.store.max_offset,
        "topics": parts.topics.to_json(),
        "groups": parts.groups.to_json(),
        "offsets": parts.offsets.to_json(),
        "config": broker.config,
    }
    return {name: repr(value) for name, value in found.items()}


async def requested(
    client: httpx.AsyncClient, row: Row, role: Credentials, **more: Any
) -> httpx.Response:
    """Send the request of a row for a role."""
    name, number = role.access_key, str(ROLES.index(role))
    method, path = row.operation.split()
    body = json.loads(
        json.dumps(row.body)
        .replace("ROLE", name)
        .replace("NUMBER", number)
        .replace("ANOTHER", "latest" if role == ROOT else "earliest")
    )
    headers = {"Idempotency-Key": row.key.replace("ROLE", name)} if row.key else {}
    address = "/api/v1" + (row.path or path).replace("ROLE", name)
    content = {} if body is None else {"json": body}
    headers |= more.pop("headers", {})
    return await client.request(method, address, headers=headers, **content, **more)


def is_permitted(response: httpx.Response, row: Row) -> bool:
    """Return whether the broker did what was requested, each part of it."""
    if response.status_code == 403:
        return False
    content = response.json()
    assert response.is_success or response.status_code == row.problem, content
    refusals = [
        *(row.get("failure", "") for row in content.get("brokers", ())),
        *(part["reason"] for part in content.get("unknown", ())),
        *(row["problem"]["detail"] for row in content.get("results", ()) if "problem" in row),
        *(row["remark"] for row in content.get("results", ()) if row.get("status") == "refused"),
    ]
    assert all("permission" in reason for reason in filter(None, refusals)), refusals
    return not any(refusals)


async def prepare(broker: Broker) -> None:
    """Create the accounts, and for each one messages and schedules to decide on."""
    async with Producer(broker=broker.address, credentials=ROOT, timeout_s=TIMEOUT_S) as producer:
        admin = Admin(client=producer.client)
        steps: list[Step] = []
        for account, permissions in PERMISSIONS.items():
            steps += user_steps(account, permissions)
        for code, fields, body in steps:
            await admin.client.ask(broker.address, code, fields, body)
        for topic in ("orders", "other", "gone"):
            await admin.create_topic(topic, TopicSettings(read_queues=1, write_queues=1))
        await admin.create_group("g")
        await producer.send(Message("orders", b"b"))
        for role in ROLES:
            await make_dead_letter(admin, "g", "orders")
            await producer.send(Message("gone", b"b", delay=HOUR))
            for change in CHANGES:
                await admin.create_schedule(
                    definition_from({**SCHEDULE, "name": f"{change}-{role.access_key}"})
                )
            await admin.pause_schedule(f"resume-{role.access_key}")
        for name in (*(role.access_key for role in ROLES), "anywhere"):
            for decision in DECISIONS:
                await producer.send(
                    Message("orders", b"b", keys=[f"{decision}-{name}"], delay=HOUR)
                )
        await admin.delete_topic("gone")
        await PendingDecisions(client=admin.client).fire(topic="gone")
        await until_quarantined(admin, len(ROLES))


def test_each_operation_has_a_row() -> None:
    operations = {f"{one.method} {one.path}" for one in endpoints(Tokens(lambda: 0.0))}
    assert {row.operation for row in ROWS} == operations


def test_each_role_may_do_what_the_brokers_permit(tmp_path: Path) -> None:
    async def main() -> None:
        async with api(tmp_path, **UNCHECKED, **KEYS) as (broker, client):
            await prepare(broker)
            for row in ROWS:
                for role in ROLES:
                    await delivered(broker)
                    before = state_of(broker)
                    auth = (role.access_key, role.secret)
                    response = await requested(client, row, role, auth=auth)
                    outcome = (row.operation, role.access_key, response.status_code, response.text)
                    assert is_permitted(response, row) == (role in row.permitted), outcome
                    if role not in row.permitted or not row.is_change:
                        assert state_of(broker) == before, outcome
                    else:
                        assert state_of(broker) != before, outcome

    asyncio.run(main())


def test_no_operation_is_done_without_an_account(tmp_path: Path) -> None:
    async def main() -> None:
        async with api(tmp_path, **UNCHECKED, **KEYS) as (broker, client):
            await prepare(broker)
            await delivered(broker)
            before = state_of(broker)
            wrong: tuple[dict[str, Any], ...] = (
                {},
                {"auth": (ROOT.access_key, "wrong")},
                {"auth": ("unknown", ROOT.secret)},
                {"headers": {"Authorization": "Bearer ended"}},
            )
            for row in ROWS:
                for credentials in wrong:
                    response = await requested(client, row, ROOT, **credentials)
                    assert response.status_code in (401, 429), (row.operation, response.text)
            assert state_of(broker) == before

    asyncio.run(main())
