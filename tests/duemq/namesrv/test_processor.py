"""Answers of the name server, code by code, compared with Apache's."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from duemq.namesrv.config import NamesrvConfig
from duemq.namesrv.kv_config import KVConfig
from duemq.namesrv.processor import NamesrvProcessor
from duemq.namesrv.registration import BrokerAddress, register_request
from duemq.namesrv.registration_body import decode_body
from duemq.namesrv.route_table import RouteTable
from duemq.net.wire_json import parse
from duemq.registry.topic_config import TopicConfig
from duemq_common.clock import FakeClock
from duemq_common.codes import RequestCode
from duemq_common.data_version import DataVersion
from duemq_common.errors import RequestError
from duemq_common.request import Request, Response
from tests.support.fakes import FakePeer
from tests.support.golden_frames import Exchange, read_exchanges
from tests.support.golden_stores import frame_files
from tests.support.handled import handled

US = BrokerAddress(
    cluster="C", broker_name="a", address="1.1.1.1:10911", ha_address="1.1.1.1:10912"
)
TOPICS = [TopicConfig(name="T", read_queues=4, write_queues=4), TopicConfig(name="U")]


class Server:
    """A processor over an empty table, with broker `a` registered."""

    def __init__(self, **config: Any) -> None:
        self.clock = FakeClock()
        self.table = RouteTable()
        self.kv = KVConfig()
        self.processor = NamesrvProcessor(NamesrvConfig(**config), self.table, self.kv, self.clock)
        self.peer = FakePeer()

    def call(self, code: int, body: bytes = b"", **fields: str) -> Response:
        return self.response(Request(code, fields, body))

    def response(self, request: Request) -> Response:
        if request.peer is None:
            request.peer = self.peer
        response = asyncio.run(handled(self.processor.handlers()[request.code], request))
        assert response is not None
        return response

    def register(self, us: BrokerAddress = US, **fields: str) -> Response:
        request = register_request(us, DataVersion(1), TOPICS, 0)
        request.fields |= fields
        return self.response(request)


@pytest.fixture
def server() -> Server:
    server = Server()
    assert server.register() == Response(fields={})
    return server


def body(response: Response) -> Any:
    assert response.code == 0
    return json.loads(bytes(response.body))


# -- clients --------------------------------------------------------------------------------------


def test_a_route_is_compact_and_its_ids_are_quoted(server: Server) -> None:
    assert server.call(105, topic="T").body == (
        b'{"brokerDatas":[{"brokerAddrs":{"0":"1.1.1.1:10911"},"brokerName":"a","cluster":"C",'
        b'"enableActingMaster":false}],"filterServerTable":{},"queueDatas":[{"brokerName":"a",'
        b'"perm":6,"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":4}]}'
    )


def test_an_unknown_topic_is_17(server: Server) -> None:
    response = server.call(105, topic="absent")
    assert response.code == 17
    assert "absent" in (response.remark or "")


@pytest.mark.parametrize(("enabled", "expected"), [(True, "a:4"), (False, None)])
def test_order_configuration_is_in_the_route_when_enabled(
    enabled: bool, expected: str | None
) -> None:
    server = Server(order_message_enable=enabled)
    server.register()
    server.call(100, namespace="ORDER_TOPIC_CONFIG", key="T", value="a:4")
    assert body(server.call(105, topic="T")).get("orderTopicConf") == expected


def test_cluster_info(server: Server) -> None:
    assert body(server.call(106))["clusterAddrTable"] == {"C": ["a"]}


# -- brokers --------------------------------------------------------------------------------------


def test_a_slave_hears_where_its_master_is(server: Server) -> None:
    response = server.register(
        BrokerAddress(
            cluster="C", broker_name="a", address="2.2.2.2:1", ha_address="2.2.2.2:2", broker_id=1
        )
    )
    assert response.fields == {"haServerAddr": US.ha_address, "masterAddr": US.address}


@pytest.mark.parametrize(("returned", "expected"), [(True, {"table": {"T": "a:4"}}), (False, None)])
def test_a_registration_is_answered_with_the_order_table(returned: bool, expected: Any) -> None:
    server = Server(return_order_config=returned)
    server.call(100, namespace="ORDER_TOPIC_CONFIG", key="T", value="a:4")
    response = server.register()
    assert (json.loads(bytes(response.body)) if response.body else None) == expected


@pytest.mark.parametrize(
    "fields",
    [{"bodyCrc32": "5"}, {"compressed": "true"}, {"brokerId": "x"}, {"brokerId": str(1 << 63)}],
)
def test_registrations_that_cannot_be_are_refused(fields: dict[str, str]) -> None:
    server = Server()
    with pytest.raises(RequestError) as refused:
        server.register(**fields)
    assert refused.value.code == 1
    assert server.table.topics() == []


@pytest.mark.parametrize("missing", ["brokerName", "brokerAddr", "clusterName", "haServerAddr"])
def test_mandatory_fields(missing: str) -> None:
    request = register_request(US, DataVersion(1), TOPICS, 0)
    del request.fields[missing]
    with pytest.raises(RequestError, match=missing):
        Server().response(request)


def test_a_checksum_of_0_is_not_checked() -> None:
    server = Server()
    server.register(bodyCrc32="0")
    assert server.table.topics() == ["T", "U"]


def test_a_closed_connection_drops_its_broker(server: Server) -> None:
    server.register()
    server.peer.close()
    assert server.call(105, topic="T").code == 17


@pytest.mark.parametrize(
    ("fields", "silent_ms"),
    [
        ({}, 120_000),
        ({"heartbeatTimeoutMillis": "5000"}, 5_000),
        ({"heartbeatTimeoutMillis": "0"}, 120_000),
    ],
)
def test_a_silent_broker_is_dropped(fields: dict[str, str], silent_ms: int) -> None:
    server = Server()
    server.register(**fields)
    for step_ms, code in ((silent_ms, 0), (1, 17)):
        server.clock.advance(step_ms)
        server.processor.expire()
        assert server.call(105, topic="T").code == code


def test_a_heartbeat_keeps_a_broker(server: Server) -> None:
    server.clock.advance(100_000)
    fields = {"clusterName": "C", "brokerAddr": US.address, "brokerName": "a"}
    assert server.call(904, **fields).code == 0
    server.clock.advance(100_000)
    server.processor.expire()
    assert server.call(105, topic="T").code == 0


@pytest.mark.parametrize(
    ("counter", "changed", "is_registered"), [(1, "false", True), (2, "true", False)]
)
def test_a_version_question_keeps_a_broker_when_nothing_changed(
    server: Server, counter: int, changed: str, is_registered: bool
) -> None:
    server.clock.advance(100_000)
    version = json.dumps(DataVersion(counter).to_json()).encode()
    response = server.call(322, version, **US.fields())
    assert response.fields == {"changed": changed}
    assert body(response) == DataVersion(1).to_json()
    server.clock.advance(100_000)
    server.processor.expire()
    assert (server.table.route("T") is not None) is is_registered


def test_a_version_question_of_an_unknown_broker() -> None:
    response = Server().call(322, b"{}", **US.fields())
    assert (response.fields, response.body) == ({"changed": "true"}, b"")


@pytest.mark.finding("3S7")
@pytest.mark.parametrize("code", [217, 318, 322])
def test_bodies_that_are_decoded_at_once_are_bounded(code: int) -> None:
    with pytest.raises(RequestError, match="the limit is 65536"):
        Server().call(code, bytes(65_537), **US.fields())


def test_unregistering(server: Server) -> None:
    assert server.call(104, **US.fields()) == Response()
    assert server.table.topics() == []
    assert server.call(104, **US.fields()) == Response()


def test_the_members_behind_a_broker_name(server: Server) -> None:
    response = body(server.call(901, clusterName="C", brokerName="a"))
    assert response["brokerMemberGroup"]["brokerAddrs"] == {"0": US.address}


# -- lists and tools ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "fields", "expected"),
    [
        (206, {}, {"topicList": ["T", "U"]}),
        (224, {"cluster": "C"}, {"topicList": ["T", "U"]}),
        (224, {"cluster": "D"}, {"topicList": []}),
        (304, {}, {"brokerAddr": US.address, "topicList": ["C", "a"]}),
        (311, {}, {"topicList": []}),
        (312, {}, {"topicList": []}),
        (313, {}, {"topicList": []}),
    ],
)
def test_topic_lists(server: Server, code: int, fields: dict[str, str], expected: Any) -> None:
    assert body(server.call(code, **fields)) == expected


def test_a_topic_is_deleted(server: Server) -> None:
    server.call(216, topic="T", clusterName="D")
    assert server.call(105, topic="T").code == 0
    server.call(216, topic="T")
    assert server.call(105, topic="T").code == 17


def test_a_topic_is_registered(server: Server) -> None:
    route = server.call(105, topic="T").body
    assert server.call(217, bytes(route), topic="New") == Response()
    assert server.call(105, topic="New").body == route


@pytest.mark.parametrize(
    "text", [b"{", b"{}", b'{"queueDatas":[1]}', b'{"queueDatas":[{"perm":"x"}]}']
)
def test_a_topic_that_cannot_be_registered(server: Server, text: bytes) -> None:
    with pytest.raises(RequestError):
        server.call(217, text, topic="New")


def test_write_permission_is_wiped_and_added(server: Server) -> None:
    assert server.call(205, brokerName="a").fields == {"wipeTopicCount": "2"}
    assert body(server.call(105, topic="T"))["queueDatas"][0]["perm"] == 4
    assert server.call(327, brokerName="a").fields == {"addTopicCount": "2"}
    assert body(server.call(105, topic="T"))["queueDatas"][0]["perm"] == 6


def test_key_values(server: Server) -> None:
    key = {"namespace": "N", "key": "k"}
    assert server.call(101, **key).code == 22
    assert server.call(219, namespace="N").code == 22
    assert server.call(100, **key, value="v") == Response()
    assert server.call(101, **key).fields == {"value": "v"}
    assert body(server.call(219, namespace="N")) == {"table": {"k": "v"}}
    assert server.call(102, **key) == Response()
    assert server.call(101, **key).code == 22


def test_configuration_is_shown_and_changed(server: Server) -> None:
    assert b"orderMessageEnable=false\n" in bytes(server.call(319).body)
    server.call(318, b"orderMessageEnable=true\nno.such.key=1\n")
    assert server.processor.config.order_message_enable
    assert b"orderMessageEnable=true\n" in bytes(server.call(319).body)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (b"orderMessageEnable=true\nkvConfigPath=/x", 16),
        (b"configBlackList=", 16),
        (b"orderMessageEnable=true\nlistenPort=1", 16),
        (b"orderMessageEnable=maybe", 1),
        (b"orderMessageEnable=true\nreturnOrderTopicConfigToBroker=many", 1),
        (b"\xff\xfe=1", 1),
    ],
)
def test_a_change_that_cannot_be_changes_nothing(server: Server, text: bytes, code: int) -> None:
    with pytest.raises(RequestError) as refused:
        server.call(318, text)
    assert refused.value.code == code
    assert not server.processor.config.order_message_enable


# -- compared with Apache -----------------------------------------------------------------------


def registration_before(exchanges: list[Exchange]) -> Request:
    """Return a registration with what the broker had when the recording began.

    These are the topics of its full registrations and of the routes, but for those that were
    unknown at first.
    """
    topics = {"SELF_TEST_TOPIC": TopicConfig(name="SELF_TEST_TOPIC")}
    unknown: set[str] = set()
    us: dict[str, str] = {}
    for _, _, request, apache in exchanges:
        if request.code == 105 and apache is not None:
            name = request.fields["topic"]
            if apache.code == 17 and name not in topics:
                unknown.add(name)
            elif apache.code == 0:
                queues = parse(bytes(apache.body))["queueDatas"][0]
                topics[name] = TopicConfig.from_json(queues, name)
        elif request.code == 103:
            us = request.fields
            reported = decode_body(request.body, compressed=False)
            if len(reported.topics) > 1:
                topics |= {
                    topic.name: topic for topic in reported.topics if topic.name not in topics
                }
            else:
                unknown |= {topic.name for topic in reported.topics}
    known = [topic for name, topic in topics.items() if name not in unknown]
    request = register_request(US, DataVersion(0), known, 0)
    return Request(103, us | {"bodyCrc32": request.fields["bodyCrc32"]}, request.body)


@pytest.mark.parametrize("stream", frame_files(), ids=lambda path: path.name.split(".jsonl")[0])
def test_recorded_clients_get_the_answers_apache_gave(stream: Path) -> None:
    exchanges = [each for each in read_exchanges(stream) if each.server == "namesrv"]
    server = Server()
    server.response(registration_before(exchanges))
    compared = 0
    for _, _, request, apache in exchanges:
        ours = server.response(request)
        if apache is not None:
            assert (ours.code, set(ours.fields or ())) == (apache.code, set(apache.fields or ()))
            assert _plain(ours) == _plain(apache), request
            compared += 1
    assert compared > 3


def _plain(response: Response) -> Any:
    """Return the body as data, without what 4.9.7 does not know and without order."""
    data = parse(bytes(response.body)) if response.body else None
    if isinstance(data, dict) and "topicList" in data:
        return sorted(data["topicList"])
    text = json.dumps(data, sort_keys=True)
    return json.loads(text.replace('"enableActingMaster": false', '"x": 0').replace(', "x": 0', ""))


def test_every_code_of_the_specification_is_answered() -> None:
    codes = {100, 101, 102, 103, 104, 105, 106, 205, 206, 216, 217, 219, 224}
    codes |= {304, 311, 312, 313, 318, 319, 322, 327, 901, 904}
    assert Server().processor.handlers().keys() == {RequestCode(code) for code in codes}
