"""Audits of a broker's store: the stored ones with their findings, and a new one."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from duemq.http.broker_states import BrokerQuery, master_address, state_problem
from duemq.http.endpoints import Call, Endpoint, JsonObject
from duemq_common.codes import RequestCode


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
    address = await master_address(call, query.broker)
    with state_problem("The ledger cannot be read"):
        return await call.session.admin.stored_audits(address, audit=audit, cursor=query.cursor)


async def start_audit(call: Call) -> AuditStart:
    """Start an audit of one broker."""
    query: BrokerQuery = call.query or BrokerQuery()
    address = await master_address(call, query.broker)
    with state_problem("The audit cannot start"):
        await call.session.client.ask(address, RequestCode.START_AUDIT)
    return AuditStart(broker=address)


ENDPOINTS: Final = (
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
        path="/audit-runs",
        handler=list_audits,
        summary="List the audits of a broker's store, newest first.",
        tag="operations",
        query=AuditsQuery,
        result=JsonObject,
        problems=(409,),
    ),
    Endpoint(
        path="/audit-runs/{name}",
        handler=show_audit,
        summary="Show an audit with its verdicts, and some messages of each finding.",
        tag="operations",
        query=AuditsQuery,
        result=JsonObject,
        problems=(409,),
    ),
)
