"""One set of properties becomes all sections."""

from __future__ import annotations

from pathlib import Path

import pytest

from duemq.cli.exits import Exit, exit_code
from duemq.configuration.apache_keys import REFUSALS, WITHOUT_EFFECT, unknown_key_list
from duemq.configuration.settings import (
    SECTIONS,
    check_directories,
    key_notices,
    known_keys,
    own_address,
    resolved,
    settings_from,
)
from duemq_common.config import Properties, parse_properties
from duemq_common.errors import ConfigError

APACHE_BROKER_CONF = """
brokerClusterName = DefaultCluster
brokerName = broker-a
brokerId = 0
deleteWhen = 04
fileReservedTime = 48
brokerRole = ASYNC_MASTER
flushDiskType = ASYNC_FLUSH
"""


def test_apaches_own_broker_conf_loads_without_a_word() -> None:
    properties = parse_properties(APACHE_BROKER_CONF)
    settings = settings_from(properties)
    assert settings.store.file_reserved_hours == 48
    assert key_notices(properties, SECTIONS) == []


def test_a_long_apache_configuration_loads_and_its_idle_keys_are_named() -> None:
    text = "putMessageTimeout=8000\nsendMessageThreadPoolNums=16\ntransientStorePoolEnable=false"
    [notice] = key_notices(parse_properties(text), SECTIONS)
    assert notice == (
        "Apache's keys without effect: putMessageTimeout, sendMessageThreadPoolNums, "
        "transientStorePoolEnable"
    )


def test_an_unknown_key_is_reported_with_the_nearest() -> None:
    [notice] = key_notices(parse_properties("\nbrokerNme=x", source="broker.conf"), SECTIONS)
    assert notice == "unknown key brokerNme (broker.conf line 2), ignored; did you mean brokerName?"


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda refusal: refusal.key)
def test_a_dangerous_value_stops_the_start(refusal: object) -> None:
    key = getattr(refusal, "key", "")
    with pytest.raises(ConfigError, match=key):
        settings_from({key: "something else"})
    settings_from({key: getattr(refusal, "allowed", ("",))[0]})


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("brokerRole=SLAVE", "brokerRole"),
        ("brokerId=1", "brokerId"),
        ("brokerId=1\nbrokerRole=SYNC_MASTER", "brokerId"),
        ("brokerId=1\nbrokerRole=slave", "brokerRole"),
        ("brokerId=1\nbrokerRole=SLAVE\nhaMasterAddress=10.0.0.1", "haMasterAddress"),
    ],
)
def test_a_role_that_does_not_fit_its_id_stops_the_start(text: str, key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        settings_from(parse_properties(text))


def test_a_replica_has_an_id_above_zero() -> None:
    settings = settings_from(parse_properties("brokerId=2\nbrokerRole=SLAVE"))
    assert settings.replication.is_replica
    assert not settings_from({}).replication.is_replica


@pytest.mark.finding("E14")
@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("tls.server.mode=enforced", "tls.server.mode"),
        ("tls.server.mode = ENFORCING", "tls.server.mode"),
        ("tls.enable=yes", "tls.enable"),
        ("tls.server.need.client.auth=always", "tls.server.need.client.auth"),
    ],
)
def test_a_misspelled_tls_value_stops_the_start(text: str, key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        settings_from(parse_properties(text))


def test_an_unknown_tls_key_is_a_notice() -> None:
    [notice] = key_notices(parse_properties("tls.server.certFile=/x"), SECTIONS)
    assert "tls.server.certFile" in notice


@pytest.mark.finding("B24")
def test_filters_over_properties_are_on_without_a_notice() -> None:
    assert not key_notices(parse_properties("enablePropertyFilter=true"), SECTIONS)
    assert settings_from(parse_properties("")).broker.property_filter_enable


@pytest.mark.finding("B20")
@pytest.mark.parametrize("key", ["storePathRootDir", "storePathCommitLog"])
def test_a_directory_that_cannot_be_made_is_named_with_its_key(key: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    values = {"storePathRootDir": str(tmp_path / "store"), key: str(tmp_path / "file" / "nope")}
    with pytest.raises(ConfigError, match=f"{key}=.*cannot be created") as refused:
        check_directories(settings_from(values).store)
    assert exit_code(refused.value) is Exit.USAGE


def test_the_keys_that_apache_5_5_adds_are_known() -> None:
    names = ("priorityOrderAsc", "timerRocksDBEnable", "transRocksDBEnable", "liteTtlCheckInterval")
    keys = Properties(dict.fromkeys(names, "true"))
    assert unknown_key_list(keys, set(known_keys(SECTIONS))) == []


def test_no_key_is_both_ours_and_without_effect() -> None:
    refused = {refusal.key for refusal in REFUSALS}
    assert not known_keys(SECTIONS) & WITHOUT_EFFECT.keys() - refused


@pytest.mark.parametrize(
    ("bind", "address"), [("127.0.0.1", "127.0.0.1"), ("10.1.2.3", "10.1.2.3")]
)
def test_a_bound_address_is_the_address_that_clients_receive(bind: str, address: str) -> None:
    assert own_address(bind) == address


def test_name_and_address_are_filled_in() -> None:
    config = resolved(settings_from({})).broker
    assert config.broker_name
    assert config.broker_ip.count(".") == 3


def test_plain_mappings_are_taken() -> None:
    assert isinstance(settings_from({"brokerName": "b"}).properties, Properties)
