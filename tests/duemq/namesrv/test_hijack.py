"""What an unauthenticated machine cannot do to a name server."""

from __future__ import annotations

import asyncio
import json
import zlib
from typing import Any

import pytest

from duemq.namesrv import kv_config, processor
from duemq.namesrv.config import NamesrvConfig
from duemq.namesrv.kv_config import KVConfig
from duemq.namesrv.processor import NamesrvProcessor
from duemq.namesrv.registration import BrokerAddress, register_request
from duemq.namesrv.registration_body import decode_body
from duemq.namesrv.route_table import BrokerAddrInfo, Registration, RouteTable
from duemq.registry.topic_config import TopicConfig
from duemq_common.clock import FakeClock
from duemq_common.data_version import DataVersion
from duemq_common.errors import RequestError
from duemq_common.request import Request
from tests.support.fakes import FakePeer
from tests.support.handled import handled

TOPICS = [TopicConfig(name="T"), TopicConfig(name="U")]
MINE = "192.0.2.1:10911"
EVIL = "203.0.113.66:666"


class Rig:
    """The name server inside broker `a` of cluster `C`, and a peer far away."""

    def __init__(self, **config: str) -> None:
        self.table = RouteTable()
        self.processor = NamesrvProcessor(
            NamesrvConfig(**config), self.table, KVConfig(), FakeClock()
        )
        self.far = FakePeer()
        self.far.address = ("203.0.113.66", 4)
        self.table.register(registration(local=True), 0)

    def call(self, code: int, fields: dict[str, str], body: bytes = b"") -> int:
        request = Request(code, fields, body, peer=self.far)
        try:
            response = asyncio.run(handled(self.processor.handlers()[code], request))
        except RequestError as refused:
            return refused.code
        assert response is not None
        return response.code

    def register(self, **changes: Any) -> int:
        us = {
            "cluster": "C",
            "broker_name": "a",
            "address": EVIL,
            "ha_address": "x",
            "broker_id": 0,
        }
        request = register_request(
            BrokerAddress(**us | changes),
            DataVersion(9, 1 << 40, 99),
            TOPICS,
            0,
        )
        return self.call(103, request.fields, bytes(request.body))

    def route(self) -> dict[str, Any]:
        return self.table.route("T") or {}


def registration(**changes: Any) -> Registration:
    values: dict[str, Any] = {
        "cluster": "C",
        "broker_name": "a",
        "broker_id": 0,
        "address": MINE,
        "ha_address": "",
        "version": DataVersion(1),
        "topics": TOPICS,
        "acting_master": False,
    }
    return Registration(**values | changes)


@pytest.mark.finding("E12")
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"cluster": "X"},
        {"address": MINE, "broker_id": 1},
        {"address": MINE, "broker_id": 1, "cluster": "X"},
        {"address": MINE, "broker_name": "evil"},
        {"address": MINE, "broker_name": "evil", "cluster": "X"},
        {"broker_id": -1},
        {"broker_id": 1 << 40},
        {"broker_name": "x" * 300},
    ],
    ids=str,
)
def test_no_registration_replaces_the_broker_of_our_process(changes: dict[str, Any]) -> None:
    rig = Rig(register_from="any")
    before = json.dumps(rig.route())
    assert rig.register(**changes) == 16
    assert json.dumps(rig.route()) == before


@pytest.mark.finding("E12")
def test_a_replica_of_the_broker_of_our_process_may_register_again_and_again() -> None:
    rig = Rig(register_from="any")
    for _ in range(2):
        assert rig.register(broker_id=1) == 0
    assert rig.route()["brokerDatas"][0]["brokerAddrs"] == {"0": MINE, "1": EVIL}


@pytest.mark.finding("E12")
@pytest.mark.parametrize("cluster", ["C", "X"])
def test_no_request_unregisters_the_broker_of_our_process(cluster: str) -> None:
    rig = Rig(register_from="any", administer_from="any")
    fields = {"brokerName": "a", "brokerAddr": MINE, "clusterName": cluster, "brokerId": "0"}
    assert rig.call(104, fields) == 16
    assert rig.route()
    rig.table.unregister(BrokerAddrInfo("C", MINE))
    assert not rig.route()


@pytest.mark.finding("E12")
@pytest.mark.parametrize(
    ("code", "fields"),
    [
        (205, {"brokerName": "a"}),
        (327, {"brokerName": "a"}),
        (216, {"topic": "T"}),
        (216, {"topic": "T", "clusterName": "C"}),
        (217, {"topic": "T"}),
        (100, {"namespace": "n", "key": "k", "value": "v"}),
        (102, {"namespace": "n", "key": "k"}),
        (318, {}),
    ],
)
def test_administration_is_taken_from_named_networks_only(
    code: int, fields: dict[str, str]
) -> None:
    rig = Rig()
    before = json.dumps(rig.route())
    assert rig.call(code, fields, b"{}") == 16
    assert json.dumps(rig.route()) == before
    rig = Rig(administer_from="203.0.113.0/24")
    assert rig.call(code, fields, b'{"queueDatas":[]}' if code == 217 else b"") == 0


def test_a_topic_that_is_gone_is_deleted_from_anywhere() -> None:
    rig = Rig()
    rig.table.drop_topic_of("a", "T")
    assert rig.call(216, {"topic": "T"}) == 0


@pytest.mark.finding("E12")
def test_brokers_of_other_networks_do_not_register() -> None:
    rig = Rig(register_from="loopback")
    assert rig.register(broker_name="b") == 16
    fields = {"brokerName": "b", "brokerAddr": EVIL, "clusterName": "C", "brokerId": "0"}
    assert rig.call(104, fields) == 16


@pytest.mark.finding("E12")
def test_one_connection_registers_a_bounded_number_of_brokers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(processor, "BROKERS_OF_CHANNEL_MAX", 3)
    rig = Rig(register_from="any")
    codes = [rig.register(broker_name=f"b{n}", address=f"1.1.1.1:{n + 1}") for n in range(5)]
    assert codes == [0, 0, 0, 1, 1]
    assert rig.register(broker_name="b0", address="1.1.1.1:1") == 0


@pytest.mark.finding("E12")
def test_a_body_that_expands_too_much_is_refused() -> None:
    bomb = zlib.compress(bytes(8 << 20), 9)
    with pytest.raises(ValueError, match="decompresses to more"):
        decode_body(bomb, compressed=True)


@pytest.mark.finding("E12")
def test_key_value_pairs_are_bounded_in_total(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_config, "TOTAL_CHARS_MAX", 20)
    rig = Rig(administer_from="any")
    pair = {"namespace": "n", "key": "k", "value": "x" * 10}
    assert rig.call(100, pair) == 0
    assert rig.call(100, pair | {"key": "l"}) == 1


def test_a_departed_brokers_topics_go_with_it() -> None:
    rig = Rig(register_from="any")
    assert rig.register(broker_name="b") == 0
    assert rig.table.topics() == ["T", "U"]
    assert len(rig.route()["queueDatas"]) == 2
    assert rig.table.unregister(BrokerAddrInfo("C", EVIL))
    assert len(rig.route()["queueDatas"]) == 1
    assert rig.table.unregister(BrokerAddrInfo("C", MINE))
    assert rig.table.topics() == []
