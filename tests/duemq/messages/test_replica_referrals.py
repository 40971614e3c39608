"""A replica refuses requests about pending messages, and names its master."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from delayed_delivery.names import MASTER_FIELD
from duemq.broker.broker import Broker
from duemq.messages.replica_referrals import AT_MASTER
from duemq_common.codes import RequestCode, ResponseCode
from tests.duemq.broker.test_role_runner import DEMOTED, broker_in
from tests.support.running_broker import connected, small

REQUESTS: dict[int, tuple[dict[str, Any], dict[str, Any]]] = {
    RequestCode.CANCEL_PENDING: ({}, {"ids": ["0" * 32]}),
    RequestCode.MOVE_PENDING: ({}, {"keys": ["k"], "delay_ms": 1}),
    RequestCode.FIRE_PENDING: ({}, {"keys": ["k"], "dry_run": True}),
    RequestCode.SEARCH_PENDING: ({}, {}),
    RequestCode.DECIDE_HITS: ({}, {}),
    RequestCode.FIND_COPIES: ({"topic": "T"}, {}),
    RequestCode.FIND_MESSAGE: ({}, {"name": "0" * 32}),
    RequestCode.FIND_MESSAGE_OF_TOPIC: ({"topic": "T"}, {"name": "0" * 32}),
    RequestCode.RECALL_MESSAGE: ({"topic": "T", "recallHandle": "x"}, {}),
}


async def responses(broker: Broker) -> dict[int, tuple[int, str, str]]:
    """Return (code, remark, address of the master) of the response to each request."""
    found = {}
    async with broker, connected(broker.address) as remote:
        for code, (fields, body) in REQUESTS.items():
            text = json.dumps(body).encode()
            response = await remote.call(code, fields, text)
            master = (response.fields or {}).get(MASTER_FIELD, "")
            found[code] = response.code, response.remark or "", master
    return found


@pytest.mark.finding("3D9")
def test_a_member_that_is_a_replica_names_the_master(tmp_path: Path) -> None:
    master = DEMOTED.master_address
    for code, remark, named in asyncio.run(responses(broker_in(tmp_path, DEMOTED))).values():
        assert (code, named) == (ResponseCode.SLAVE_NOT_AVAILABLE, master)
        assert remark.startswith("this broker is a replica")
        assert remark.endswith(f"use --broker {master}")


@pytest.mark.finding("3D9")
def test_a_replica_without_a_master_refuses_as_well(tmp_path: Path) -> None:
    replica = Broker(small(tmp_path, brokerRole="SLAVE", brokerId="1"))
    for code, remark, _ in asyncio.run(responses(replica)).values():
        assert code == ResponseCode.SLAVE_NOT_AVAILABLE
        assert "its master is not known now" in remark


def test_a_master_decides(tmp_path: Path) -> None:
    codes = {code for code, *_ in asyncio.run(responses(Broker(small(tmp_path)))).values()}
    assert ResponseCode.SLAVE_NOT_AVAILABLE not in codes
    assert ResponseCode.SUCCESS in codes


def test_the_requests_are_complete() -> None:
    assert REQUESTS.keys() == AT_MASTER
