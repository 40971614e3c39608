"""Members of the cluster, and views of their state: replicas, timers, levels, audits.

A state that is not known has a reason in `failure` instead of numbers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from duemq.client.admin.cluster import BrokerMember
from duemq.http.broker_states import BrokerState, of_members, views
from duemq.http.endpoints import Call, Endpoint, JsonObject
from duemq.net.view_names import AUDITS_VIEW, LEVELS_VIEW, REPLICATION_VIEW, TIMERS_VIEW


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


def state_of(name: str, view: str, *, masters: bool) -> Callable[[Call], Awaitable[BrokerRows]]:
    """Return the handler that reads a view of every member, or of the masters."""

    async def read(call: Call) -> BrokerRows:
        session = call.session
        members = await (session.masters() if masters else session.members())
        rows = [_row(state) for state in await views(session, members, view)]
        return BrokerRows(rows)

    read.__name__ = f"show_{name}"
    return read


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


VIEWS: Final = (
    ("replicas", REPLICATION_VIEW, False, "Show role, state and lag of every member."),
    ("timers", TIMERS_VIEW, True, "Show counts, lag and rates of the timers."),
    ("levels", LEVELS_VIEW, True, "Show the delay levels and their messages."),
    ("audits", AUDITS_VIEW, True, "Show the scheduled audits and the last result."),
)
"""Path, name of the view, whether only masters have it, summary."""
ENDPOINTS: Final = (
    Endpoint(
        path="/brokers",
        handler=list_brokers,
        summary="List masters and replicas.",
        tag="operations",
        result=BrokerRows,
    ),
    *[
        Endpoint(
            path=f"/{name}",
            handler=state_of(name, view, masters=masters),
            summary=summary,
            tag="operations",
            result=BrokerRows,
        )
        for name, view, masters, summary in VIEWS
    ],
)
