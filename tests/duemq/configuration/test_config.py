"""The broker's and the name server's sections."""

from __future__ import annotations

import pytest

from duemq.configuration.config import BrokerConfig
from duemq.namesrv.config import NamesrvConfig
from duemq_common.config import from_properties, options
from duemq_common.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("", []),
        ("10.0.0.1:9876", ["10.0.0.1:9876"]),
        ("a:1;b:2", ["a:1", "b:2"]),
        (" a:1 ; ", ["a:1"]),
        ("a:1,b:2", ["a:1", "b:2"]),
    ],
)
def test_name_server_addresses(text: str, addresses: list[str]) -> None:
    assert from_properties(BrokerConfig, {"namesrvAddr": text}).namesrv_list == addresses


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("brokerName", "a b"),
        ("brokerName", "x" * 128),
        ("brokerClusterName", ""),
        ("brokerIP1", "broker.example.org"),
        ("bindAddress", "everywhere"),
        ("administerFrom", "office"),
        ("listenPort", "65536"),
        ("listenPort", "-1"),
        ("brokerId", "-2"),
        pytest.param("regionId", "R" * 128, marks=pytest.mark.finding("A15")),
        ("regionId", "a b"),
        ("regionId", "a@b"),
        ("regionId", "a\x02b"),
    ],
)
def test_what_the_broker_refuses(key: str, value: str) -> None:
    with pytest.raises(ConfigError, match=key):
        from_properties(BrokerConfig, {key: value})


def test_frozen_keys_include_what_apache_always_refuses() -> None:
    config = from_properties(BrokerConfig, {"configBlackList": "storePathRootDir"})
    assert {"storePathRootDir", "brokerConfigPath", "rocketmqHome", "configBlackList"} == (
        config.frozen_keys
    )


def test_disabled_plugins() -> None:
    assert BrokerConfig(plugins_disabled="a; b;").disabled_plugins == {"a", "b"}


@pytest.mark.parametrize("section", [BrokerConfig, NamesrvConfig])
def test_every_option_is_described(section: type) -> None:
    keys = [item.key for item in options(section)]
    assert len(keys) == len(set(keys))
    for item in options(section):
        assert item.doc.endswith(".")
        assert isinstance(item.default, item.kind)
