"""Keys from environment variables: names, precedence, unknown variables."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from duemq.cli.config_show import broker_sections
from duemq.configuration.config import BrokerConfig
from duemq.configuration.environment import OF_COMMANDS, variable_of, with_environment
from duemq.namesrv.config import NamesrvConfig
from duemq_common.config import Properties, options
from tests.support.commands import TOP, duemq


@pytest.mark.parametrize(
    ("key", "variable"),
    [
        ("brokerName", "DUEMQ_BROKER_NAME"),
        ("brokerIP1", "DUEMQ_BROKER_IP1"),
        ("tls.server.certPath", "DUEMQ_TLS_SERVER_CERT_PATH"),
        ("timerCongestNumEachSlot", "DUEMQ_TIMER_CONGEST_NUM_EACH_SLOT"),
    ],
)
def test_the_variable_of_a_key(key: str, variable: str) -> None:
    assert variable_of(key) == variable


def test_each_key_has_a_variable_of_its_own() -> None:
    sections = [*broker_sections(Properties()), NamesrvConfig]
    keys = {item.key for section in sections for item in options(section)}
    assert len({variable_of(key) for key in keys} - OF_COMMANDS) == len(keys)


def test_variables_of_commands_are_no_keys() -> None:
    sources = [*(TOP / "duemq" / "cli").glob("*.py"), TOP / "spark_reconciliation/spark/session.py"]
    named = {
        word
        for path in sources
        if path.exists()
        for word in re.findall(r'envvar="(DUEMQ_\w+)"', path.read_text())
    }
    assert named <= OF_COMMANDS


def values_of(file: Mapping[str, str], environment: Mapping[str, str]) -> Properties:
    properties = Properties(file, dict.fromkeys(file, "file"))
    return with_environment(properties, environment, [BrokerConfig], lambda properties: [])


def test_a_variable_replaces_the_value_of_the_file() -> None:
    properties = values_of({"brokerName": "a", "brokerId": "0"}, {"DUEMQ_BROKER_NAME": "b"})
    assert dict(properties) == {"brokerName": "b", "brokerId": "0"}
    assert properties.source("brokerName") == "environment DUEMQ_BROKER_NAME"
    assert properties.source("brokerId") == "file"


def test_an_unknown_variable_is_reported_without_its_value() -> None:
    properties = values_of({}, {"DUEMQ_PASSWORD": "secret", "DUEMQ_CONTEXT": "x", "PATH": "/"})
    assert dict(properties) == {"DUEMQ_PASSWORD": ""}


def test_the_command_line_precedes_the_environment_and_the_environment_the_file(
    tmp_path: Path,
) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("brokerName = a\nbrokerClusterName = a\nlistenPort = 1\n")
    environment = {
        "DUEMQ_BROKER_CLUSTER_NAME": "b",
        "DUEMQ_LISTEN_PORT": "2",
        "DUEMQ_TIMER_MAX_DELAY_SEC": "99",  # of a plugin
        "DUEMQ_BROKER_NAM": "b",
    }
    words = ("config", "show", "-c", str(file), "--set", "listenPort=3", "--json")
    done = duemq(*words, env=environment)
    shown = json.loads(done.stdout)
    rows = {row["key"]: (row["value"], row["source"]) for row in shown["keys"]}
    assert rows["brokerName"] == ("a", "broker.conf line 1")
    assert rows["brokerClusterName"] == ("b", "environment DUEMQ_BROKER_CLUSTER_NAME")
    assert rows["listenPort"] == ("3", "command line")
    assert rows["timerMaxDelaySec"] == ("99", "environment DUEMQ_TIMER_MAX_DELAY_SEC")
    assert rows["brokerId"] == ("0", "")
    [notice] = [text for text in shown["notices"] if "DUEMQ_BROKER_NAM" in text]
    assert notice.startswith("unknown key DUEMQ_BROKER_NAM (environment), ignored")
