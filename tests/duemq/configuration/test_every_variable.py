"""Every configuration key by its environment variable: read, preferred to the file, in errors."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

from duemq.cli.config_show import broker_sections, plugin_sections
from duemq.client import Admin
from duemq.configuration.environment import variable_of, with_environment
from duemq.configuration.settings import SECTIONS, settings_from
from duemq.namesrv.config import NamesrvConfig
from duemq_common.config import INT_MAX, Option, Properties, from_properties, options, value_text
from duemq_common.errors import ConfigError
from tests.support.commands import duemq_process, start

ACCOUNT: Final = '{"username":"root","password":"secret"}'
MEMBER: Final = '{"accessKey":"root","secretKey":"secret"}'
NETWORKS: Final = "10.0.0.0/8"
VALID: Final = {
    "administerFrom": NETWORKS,
    "authenticationWhitelist": "105",
    "authorizationWhitelist": "38",
    "bindAddress": "127.0.0.2",
    "brokerIP1": "10.0.0.5",
    "consoleProxies": NETWORKS,
    "controllerAddr": "10.0.0.1:9878",
    "deleteWhen": "05",
    "embeddedNamesrvAdministerFrom": NETWORKS,
    "embeddedNamesrvRegisterFrom": NETWORKS,
    "haMasterAddress": "10.0.0.1:10912",
    "initAuthenticationUser": ACCOUNT,
    "innerClientAuthenticationCredentials": MEMBER,
    "mappedFileSizeConsumeQueue": "400",
    "messageDelayLevel": "1s 2h",
    "namesrvAddr": "10.0.0.1:9876",
    "otelTracesEndpoint": "http://127.0.0.1:4318",
    "proxyProtocolFrom": NETWORKS,
    "reconcileCron": "30 3 * * *",
    "registerFrom": NETWORKS,
    "replicasFrom": NETWORKS,
    "timerPrecisionMs": "500",
}
"""Values that differ from the default, of keys that do not accept each text or number."""
NEEDED: Final[Mapping[str, Mapping[str, str]]] = {
    "aclEnable": {"rocketmqHome": "/etc/rocketmq"},
    "authorizationEnabled": {"authenticationEnabled": "true"},
    "enableControllerMode": {"controllerAddr": "10.0.0.1:9878"},
}
"""Other keys without which a value is refused."""
OTHER_ROLES: Final = ("aclEnable", "authenticationEnabled", "authorizationEnabled", "brokerRole")
KEPT: Final = frozenset(
    {
        *OTHER_ROLES,
        "brokerId",
        "brokerPluginDisabled",
        "bindAddress",
        "brokerIP1",
        "consolePort",
        "embeddedNamesrvAdministerFrom",
        "embeddedNamesrvEnable",
        "embeddedNamesrvPort",
        "embeddedNamesrvRegisterFrom",
        "enableControllerMode",
        "grpcServerPort",
        "haListenPort",
        "haMasterAddress",
        "initAuthenticationUser",
        "innerClientAuthenticationCredentials",
        "listenPort",
        "mappedFileSizeCommitLog",
        "metricsPromExporterHost",
        "metricsPromExporterPort",
        "namesrvAddr",
        "otelTracesEndpoint",
        "storePathCommitLog",
        "storePathRootDir",
    }
)
"""Keys with which the broker of a test would not start, or not answer at its address."""

BROKER = broker_sections(Properties())
ALL = [*BROKER, NamesrvConfig]


def other_value(item: Option) -> str:
    """Return a valid value that is not the default."""
    if item.key in VALID:
        return VALID[item.key]
    if item.kind is bool:
        return value_text(not item.default)
    if item.kind is str:
        return next((each for each in item.choices if each != item.default), "x")
    assert isinstance(item.default, int | float)
    is_last = item.default + 1 > (INT_MAX if item.maximum is None else item.maximum)
    return value_text(item.default + (-1 if is_last else 1))


def read(file: Mapping[str, str], variables: Mapping[str, str]) -> Properties:
    """Return the properties of a file and of variables."""
    sections = [*SECTIONS, NamesrvConfig]
    properties = Properties(file, dict.fromkeys(file, "broker.conf line 1"))
    return with_environment(properties, variables, sections, plugin_sections)


@pytest.mark.parametrize("section", ALL, ids=lambda section: section.__name__)
def test_each_variable_replaces_the_value_of_the_file(section: type) -> None:
    outcomes, expected = {}, {}
    for item in options(section):
        text, variable = other_value(item), variable_of(item.key)
        file = {item.key: value_text(item.default), **NEEDED.get(item.key, {})}
        properties = read(file, {variable: text})
        value = value_text(getattr(from_properties(section, properties), item.name))
        outcomes[item.key] = (value, properties.source(item.key))
        expected[item.key] = (text, f"environment {variable}")
    assert outcomes == expected


@pytest.mark.parametrize("section", ALL, ids=lambda section: section.__name__)
def test_each_error_names_the_variable(section: type) -> None:
    checked = [
        item
        for item in options(section)
        if item.kind is not str or item.choices or item.key in VALID
    ]
    for item in checked:
        properties = read({item.key: other_value(item)}, {variable_of(item.key): "no value"})
        with pytest.raises(ConfigError) as caught:
            from_properties(section, properties)
        assert f" (environment {variable_of(item.key)}): " in str(caught.value)


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("variables", "text"),
    [
        ({"DUEMQ_LISTEN_PORT": "x"}, "listenPort=x (environment DUEMQ_LISTEN_PORT)"),
        ({"DUEMQ_BIND_ADDRESS": "x"}, "bindAddress=x (environment DUEMQ_BIND_ADDRESS)"),
        ({"DUEMQ_STORE_PATH_ROOT_DIR": ""}, "(environment DUEMQ_STORE_PATH_ROOT_DIR)"),
        ({"DUEMQ_BROKER_ID": "1"}, "brokerId=1 (environment DUEMQ_BROKER_ID)"),
        ({"DUEMQ_MESSAGE_DELAY_LEVEL": "x"}, "(environment DUEMQ_MESSAGE_DELAY_LEVEL)"),
        (
            {
                "DUEMQ_TLS_SERVER_CERT_PATH": "/none",
                "DUEMQ_TLS_SERVER_KEY_PATH": "/none",
                "DUEMQ_TLS_TEST_MODE_ENABLE": "false",
            },
            "tls.server.certPath=/none (environment DUEMQ_TLS_SERVER_CERT_PATH)",
        ),
        (
            {"DUEMQ_STORE_PATH_ROOT_DIR": "/proc/store"},
            "storePathRootDir=/proc/store (environment DUEMQ_STORE_PATH_ROOT_DIR)",
        ),
    ],
    ids=lambda value: next(iter(value), "") if isinstance(value, dict) else "",
)
def test_a_broker_that_does_not_start_names_the_variable(
    tmp_path: Path, variables: dict[str, str], text: str
) -> None:
    own = {
        "DUEMQ_LISTEN_PORT": "0",
        "DUEMQ_METRICS_EXPORTER_TYPE": "DISABLE",
        "DUEMQ_STORE_PATH_ROOT_DIR": str(tmp_path / "store"),
    }
    done = duemq_process("broker", env=own | variables)
    assert done.returncode == 2, done.stderr
    assert text in done.stderr.splitlines()[-1]


def test_a_name_server_that_does_not_start_names_the_variable() -> None:
    variables = {
        "DUEMQ_LISTEN_PORT": "0",
        "DUEMQ_TLS_SERVER_CERT_PATH": "/none",
        "DUEMQ_TLS_SERVER_KEY_PATH": "/none",
        "DUEMQ_TLS_TEST_MODE_ENABLE": "false",
    }
    done = duemq_process("namesrv", env=variables)
    assert done.returncode == 2, done.stderr
    text = "tls.server.certPath=/none (environment DUEMQ_TLS_SERVER_CERT_PATH)"
    assert text in done.stderr.splitlines()[-1]


def test_values_that_contradict_each_other_name_the_variable() -> None:
    properties = read({}, {"DUEMQ_BROKER_ID": "1"})
    with pytest.raises(ConfigError, match=r"brokerId=1 \(environment DUEMQ_BROKER_ID\)"):
        settings_from(properties)


def test_a_running_broker_has_the_values_of_the_variables(tmp_path: Path) -> None:
    items = [item for section in BROKER for item in options(section) if item.key not in KEPT]
    used = [item for item in items if not item.key.startswith(("tls.", "storePath"))]
    assert len(used) > 120
    values = {item.key: other_value(item) for item in used}
    variables = {variable_of(key): text for key, text in values.items()}
    broker = start(tmp_path, env=variables)
    try:
        shown = asyncio.run(_config_of(str(broker.ready["address"])))
        assert {key: shown[key] for key in values} == values
    finally:
        broker.stop()


async def _config_of(address: str) -> Mapping[str, str]:
    async with Admin(broker=address) as admin:
        return await admin.broker_config(address)
