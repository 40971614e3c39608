"""Requests to the controller, and answers that no controller may give."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duemq.replication.controller import requests
from duemq.replication.controller.requests import (
    BrokerHeartbeat,
    ControllerFault,
    ControllerRefusal,
    GroupName,
    GroupView,
    Leader,
    SyncStateSet,
)
from duemq_common.codes import RequestCode, ResponseCode
from duemq_common.errors import PeerError
from duemq_common.request import Request, Response

GROUP = GroupName("c", "b")
GET, ELECT = RequestCode.CONTROLLER_GET_REPLICA_INFO, RequestCode.CONTROLLER_ELECT_MASTER
NAMES = {"clusterName": "c", "brokerName": "b"}
BEAT = BrokerHeartbeat(
    address="h:1",
    broker_id=2,
    epoch=3,
    max_offset=9,
    confirm_offset=8,
    limit_ms=10_000,
    election_priority=7,
)


@pytest.mark.parametrize(
    ("request_", "code", "fields", "body"),
    [
        (requests.leader_request(), 1005, {}, None),
        (requests.next_id_request(GROUP), 1012, NAMES, None),
        (
            requests.apply_id(GROUP, 2, "h:1;5"),
            1013,
            NAMES | {"appliedBrokerId": "2", "registerCheckCode": "h:1;5"},
            None,
        ),
        (
            requests.register(GROUP, 2, "h:1", 5),
            1003,
            NAMES | {"brokerId": "2", "brokerAddress": "h:1", "invokeTime": "5"},
            None,
        ),
        (requests.replica_info_request(GROUP), 1004, {"brokerName": "b"}, None),
        (
            requests.elect(GROUP, 2, 5),
            1002,
            NAMES | {"brokerId": "2", "designateElect": "false", "invokeTime": "5"},
            None,
        ),
        (
            requests.alter_sync_state_set(GROUP, 2, 3, SyncStateSet(frozenset({2, 1}), 4), 5),
            1001,
            {"brokerName": "b", "masterBrokerId": "2", "masterEpoch": "3", "invokeTime": "5"},
            {"syncStateSet": [1, 2], "syncStateSetEpoch": 4},
        ),
        (
            requests.heartbeat(GROUP, BEAT),
            904,
            NAMES
            | {
                "brokerAddr": "h:1",
                "brokerId": "2",
                "epoch": "3",
                "maxOffset": "9",
                "confirmOffset": "8",
                "heartbeatTimeoutMills": "10000",
                "electionPriority": "7",
            },
            None,
        ),
    ],
)
def test_requests(
    request_: Request, code: int, fields: dict[str, str], body: dict[str, object] | None
) -> None:
    assert (request_.code, request_.fields) == (code, fields)
    assert (json.loads(request_.body) if request_.body else None) == body


def body(**values: object) -> bytes:
    return json.dumps(values).encode()


def in_sync(ids: object, epoch: object = 1) -> bytes:
    return body(syncStateSet=ids, syncStateSetEpoch=epoch)


def info(**changes: str) -> Response:
    """Return an answer to 1004 with other fields."""
    fields = {"masterEpoch": "4", "masterBrokerId": "2", "masterAddress": "h:1"} | changes
    return Response(fields=fields, body=body(syncStateSet=[1, 2], syncStateSetEpoch=6))


SET = SyncStateSet(frozenset({1, 2}), 6)


def test_answers() -> None:
    leads = Response(fields={"isLeader": "true", "controllerLeaderAddress": "h:1"})
    assert requests.leader_of(leads) == Leader(True, "h:1")
    assert requests.leader_of(Response(fields={"isLeader": "false"})) == Leader(False, "")
    assert requests.next_id_of(Response(fields={"nextBrokerId": "3"})) == 3
    assert requests.has_master(Response(fields={"masterBrokerId": "3"}))
    assert not requests.has_master(Response(fields=NAMES))
    assert requests.view_of(GET, info()) == GroupView(4, 2, "h:1", SET)
    assert requests.view_of(GET, info(masterBrokerId="")) == GroupView(4, None, "", SET)
    altered = Response(body=body(syncStateSet=[1, 2], syncStateSetEpoch=6))
    assert requests.altered_of(altered) == SET


@pytest.mark.parametrize(
    ("ids", "epoch"),
    [([1], 0), ([1], (1 << 31) - 1), ([(1 << 63) - 1], 1), (list(range(1, 1_001)), 1)],
)
def test_sync_state_sets_at_each_bound(ids: list[int], epoch: int) -> None:
    response = Response(body=in_sync(ids, epoch))
    assert requests.altered_of(response) == SyncStateSet(frozenset(ids), epoch)


@pytest.mark.parametrize("code", [ResponseCode.SUCCESS, ResponseCode.CONTROLLER_MASTER_STILL_EXIST])
def test_an_election_names_the_set_in_the_body_and_its_epoch_in_the_header(code: int) -> None:
    members = b'{"brokerMemberGroup":{"brokerAddrs":{1:"h:1"}},"syncStateSet":[2]}'
    response = info(syncStateSetEpoch="7")
    response.code, response.body = code, members
    assert requests.view_of(ELECT, response).in_sync == SyncStateSet(frozenset({2}), 7)


def test_a_refusal_has_the_code_and_its_meaning() -> None:
    response = Response(ResponseCode.CONTROLLER_BROKER_ID_INVALID, "remark")
    with pytest.raises(ControllerRefusal, match=r"2014 \(the id belongs to another") as refused:
        requests.check(RequestCode.CONTROLLER_APPLY_BROKER_ID, response)
    assert refused.value.code == 2014


def test_every_code_of_the_controller_has_a_meaning() -> None:
    assert set(requests.MEANINGS) == {code for code in ResponseCode if 2_000 <= code < 2_100}


@pytest.mark.parametrize(
    "response",
    [
        info(masterEpoch=""),
        info(masterEpoch="-1"),
        info(masterEpoch="x"),
        info(masterEpoch=str(1 << 31)),
        info(masterEpoch="²"),
        info(masterBrokerId="0"),
        info(masterBrokerId="-2"),
        info(masterBrokerId="1e3"),
        info(masterBrokerId=str(1 << 63)),
        info(masterBrokerId="2".zfill(20)),
        info(masterBrokerId="1" * 5_000),
        info(masterAddress=""),
        info(masterAddress="h"),
        info(masterAddress="h:0"),
        info(masterAddress="h:70000"),
        info(masterAddress=":1"),
        info(masterAddress="h" * 400 + ":1"),
    ],
)
def test_headers_that_no_controller_sends(response: Response) -> None:
    with pytest.raises(ControllerFault):
        requests.view_of(GET, response)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"1",
        b"\xff",
        body(),
        body(syncStateSet=[1]),
        in_sync(None),
        in_sync("1"),
        in_sync([0]),
        in_sync([-1]),
        in_sync([True]),
        in_sync([1.5]),
        in_sync(["1"]),
        in_sync([1 << 63]),
        in_sync([1], -1),
        in_sync([1], "1"),
        in_sync([1], 1 << 31),
        in_sync([1], True),
        in_sync(list(range(1, 1_002))),
        b"[" * 100_000,
    ],
)
def test_bodies_that_no_controller_sends(data: bytes) -> None:
    for read in (
        lambda: requests.view_of(GET, Response(fields=info().fields, body=data)),
        lambda: requests.altered_of(Response(body=data)),
    ):
        with pytest.raises(ControllerFault):
            read()


TEXTS = st.one_of(st.text(max_size=12), st.integers(-5, 1 << 65).map(str), st.just("h:1"))
FIELD_NAMES = (
    "masterEpoch",
    "masterBrokerId",
    "masterAddress",
    "syncStateSetEpoch",
    "nextBrokerId",
    "isLeader",
    "controllerLeaderAddress",
)
READERS: list[Callable[[Response], object]] = [
    requests.leader_of,
    requests.next_id_of,
    requests.has_master,
    requests.altered_of,
    lambda response: requests.view_of(GET, response),
    lambda response: requests.view_of(ELECT, response),
]


@given(
    code=st.sampled_from([0, 0, 0, 1, 2007, 2011]),
    fields=st.one_of(
        st.none(), st.fixed_dictionaries({}, optional=dict.fromkeys(FIELD_NAMES, TEXTS))
    ),
    data=st.one_of(
        st.binary(max_size=40),
        st.recursive(
            st.one_of(st.none(), st.integers(), st.text(max_size=4)),
            lambda inner: st.one_of(
                st.lists(inner, max_size=3),
                st.dictionaries(
                    st.sampled_from(["syncStateSet", "syncStateSetEpoch"]), inner, max_size=2
                ),
            ),
            max_leaves=6,
        ).map(lambda value: json.dumps(value).encode()),
    ),
)
def test_nonsense_is_an_error_of_the_peer(
    code: int, fields: dict[str, str] | None, data: bytes
) -> None:
    for read in READERS:
        try:
            read(Response(code, None, fields, data))
        except PeerError:
            continue
