"""Members of the broker groups: role, state, lag, and the connections of replicas."""

from __future__ import annotations

from typing import Final

from duemq.console.blocks import Cell, Key, PageContent, Table
from duemq.console.call import PageCall
from duemq.http.broker_states import BrokerState, views
from duemq.http.endpoints import JsonObject
from duemq.net.view_names import REPLICATION_VIEW

MEMBERS: Final = (
    "broker",
    "member_id",
    "address",
    "role",
    "state",
    "log_end",
    "lag",
    "lag_messages",
    "lag_time",
    "reason",
)
CONNECTIONS: Final = ("broker", "member_id", "address", "acknowledged", "lag", "lag_time", "state")
REASONS: Final = ("groupFailure", "refusal", "failure")
"""Keys of errors, the most important first: the last connection may have ended long ago."""


async def replicas(call: PageCall) -> PageContent:
    """Return every member of every broker group."""
    states = await views(call.session, await call.session.members(), REPLICATION_VIEW)
    is_known = all(state.error is None for state in states)
    empty = Key("table.empty" if is_known else "value.unknown")
    blocks = [
        Table(Key("nav.replicas"), MEMBERS, [_member_row(state) for state in states], empty),
        Table(
            Key("replicas.connections"),
            CONNECTIONS,
            [
                _connection_row(state.member.name, connection)
                for state in states
                for connection in (state.value or {}).get("replicas") or ()
            ],
            empty,
        ),
    ]
    return PageContent(Key("nav.replicas"), blocks, live=True)


def _member_row(state: BrokerState) -> list[Cell]:
    member, value = state.member, state.value or {}
    lag_kinds = (("lagBytes", "bytes"), ("lagMessages", "number"), ("lagMs", "ms"))
    is_master = value.get("role") == "MASTER"
    lags = [
        Cell("value.none", "key") if is_master else Cell(value.get(name), kind)
        for name, kind in lag_kinds
    ]
    reasons = (value.get(name) for name in REASONS)
    return [
        Cell(member.name),
        Cell(member.broker_id, "number"),
        Cell(member.address, "code"),
        Cell(value.get("role")),
        Cell(value.get("state"), state="bad" if value.get("refusal") else ""),
        Cell(value.get("logEnd"), "number"),
        *lags,
        Cell(state.failure or next((text for text in reasons if text), ""), "words"),
    ]


def _connection_row(broker: str, connection: JsonObject) -> list[Cell]:
    is_in_sync = connection.get("inSync")
    state = Cell(
        None if is_in_sync is None else "replicas.in_sync" if is_in_sync else "replicas.behind",
        "key",
        state="good" if is_in_sync else "bad",
    )
    return [
        Cell(broker),
        Cell(connection.get("id"), "number"),
        Cell(connection.get("address"), "code"),
        Cell(connection.get("acknowledged"), "number"),
        Cell(connection.get("lagBytes"), "bytes"),
        Cell(connection.get("lagMs"), "ms"),
        state,
    ]
