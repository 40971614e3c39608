"""Variables and probes in the files of `deploy/`, and their schemas."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml

from duemq.cli.config_show import broker_sections, plugin_sections
from duemq.cli.serve import STOP_S_MAX
from duemq.configuration.environment import OF_COMMANDS, variable_of, with_environment
from duemq.configuration.settings import SECTIONS, key_notices, resolved, settings_from
from duemq.http.probes import PATHS
from duemq.namesrv.config import NamesrvConfig
from duemq_common.config import Properties, from_properties, options
from tests.support.commands import TOP

DEPLOY = TOP / "deploy"
KUBERNETES = "1.37"
FILES = (
    "container/Containerfile",
    "compose/compose.yml",
    "kubernetes/duemq.yml",
    "systemd/duemq-broker.service",
    "systemd/duemq-namesrv.service",
)


@pytest.mark.parametrize("name", FILES)
def test_each_variable_sets_a_key(name: str) -> None:
    sections = [*broker_sections(Properties()), NamesrvConfig]
    variables = {variable_of(item.key) for section in sections for item in options(section)}
    used = set(re.findall(r"\bDUEMQ_[A-Z0-9_]+\b", (DEPLOY / name).read_text()))
    assert used
    assert used <= variables | OF_COMMANDS


def resources(kind: str) -> list[dict[str, Any]]:
    documents = yaml.safe_load_all((DEPLOY / "kubernetes" / "duemq.yml").read_text())
    return [document for document in documents if document["kind"] == kind]


def compose() -> Any:
    return yaml.safe_load((DEPLOY / "compose" / "compose.yml").read_text())


def pods() -> dict[str, Any]:
    """Return the specification of each pod by the command of its container."""
    specifications = [
        document["spec"]["template"]["spec"]
        for kind in ("StatefulSet", "Deployment")
        for document in resources(kind)
    ]
    return {pod["containers"][0]["args"][0]: pod for pod in specifications}


def image_variables() -> dict[str, str]:
    text = (DEPLOY / "container" / "Containerfile").read_text()
    return dict(re.findall(r"\b(DUEMQ_\w+)=(\S+)", text.rpartition("FROM ")[2]))


def pod_variables(command: str) -> dict[str, str]:
    items = pods()[command]["containers"][0]["env"]
    return {item["name"]: item.get("value", "10.0.0.1") for item in items}


@pytest.mark.parametrize(
    "variables",
    [
        pytest.param(compose()["services"]["broker-a"]["environment"], id="compose"),
        pytest.param(pod_variables("broker"), id="kubernetes"),
    ],
)
def test_a_broker_starts_with_the_variables_and_its_probes_are_reached(
    variables: dict[str, str],
) -> None:
    environment = image_variables() | variables
    properties = with_environment(Properties(), environment, SECTIONS, plugin_sections)
    settings = resolved(settings_from(properties))
    assert settings.broker.bind_address == "0.0.0.0"
    assert settings.broker.metrics_host == "0.0.0.0"  # with accounts, the default is 127.0.0.1
    assert key_notices(properties, broker_sections(properties)) == []


def test_a_name_server_starts_with_the_variables_of_the_image_without_notices() -> None:
    """The image sets the store's directory for brokers."""
    environment = image_variables() | pod_variables("namesrv")
    assert "DUEMQ_STORE_PATH_ROOT_DIR" in environment
    sections = [*SECTIONS, NamesrvConfig]
    properties = with_environment(Properties(), environment, sections, plugin_sections)
    assert key_notices(properties, [NamesrvConfig]) == []
    assert from_properties(NamesrvConfig, properties).bind_address == "0.0.0.0"


def test_a_stop_has_time_to_end_by_itself() -> None:
    graces = [
        service["stop_grace_period"].removesuffix("s")
        for name, service in compose()["services"].items()
        if name.startswith("broker")
    ]
    graces.append(pods()["broker"]["terminationGracePeriodSeconds"])
    for unit in (DEPLOY / "systemd").glob("*.service"):
        graces += re.findall(r"^TimeoutStopSec=(\d+)s$", unit.read_text(), re.M)
    assert len(graces) == 5
    assert all(int(grace) > STOP_S_MAX for grace in graces)


def test_ports_are_those_of_the_keys() -> None:
    properties = with_environment(Properties(), pod_variables("broker"), SECTIONS, plugin_sections)
    broker = settings_from(properties).broker
    ports = {
        "remoting": broker.listen_port,
        "grpc": broker.grpc_port,
        "http": broker.metrics_port,
    }
    container = pods()["broker"]["containers"][0]
    assert {item["name"]: item["containerPort"] for item in container["ports"]} == ports
    text = (DEPLOY / "container" / "Containerfile").read_text()
    exposed = set(re.findall(r"\d+", re.findall(r"^EXPOSE (.*)$", text, re.M)[0]))
    name_server = NamesrvConfig().listen_port
    assert exposed == {str(port) for port in (*ports.values(), broker.listen_port - 2, name_server)}


def test_replicas_come_from_the_network_of_the_compose_file() -> None:
    """The default networks of Docker and Podman differ."""
    [network] = compose()["networks"]["default"]["ipam"]["config"]
    variables = compose()["services"]["broker-a"]["environment"]
    assert variables["DUEMQ_REPLICAS_FROM"] == network["subnet"]


def test_the_controller_can_write_its_volume() -> None:
    """A new volume belongs to root, and the user of Apache's image is another one."""
    controller = compose()["services"]["controller"]
    [volume] = controller["volumes"]
    [config] = compose()["configs"].values()
    assert controller["user"] == "0"
    assert f"controllerStorePath = {volume.partition(':')[2]}" in config["content"]


def test_bytecode_of_the_image_is_valid_whatever_the_times_of_its_files() -> None:
    """An image rounds times: with bytecode by times, each start compiled half of the modules."""
    text = (DEPLOY / "container" / "Containerfile").read_text()
    assert "--no-compile" in text
    assert "--invalidation-mode unchecked-hash" in text


@pytest.mark.extended
def test_the_manifests_match_the_schemas_of_kubernetes() -> None:
    import kubernetes_validate  # takes a second, which not each worker needs

    documents = list(yaml.safe_load_all((DEPLOY / "kubernetes" / "duemq.yml").read_text()))
    assert len(documents) > 5
    for document in documents:
        kubernetes_validate.validate(document, KUBERNETES, strict=True)


def test_the_compose_file_matches_the_specification() -> None:
    from compose_spec import PyCompose

    content = yaml.safe_load((DEPLOY / "compose" / "compose.yml").read_text())
    without_anchors = {key: value for key, value in content.items() if not key.startswith("x-")}
    assert PyCompose.from_json(json.dumps(without_anchors)).service_names()


def test_the_probes_of_a_broker_exist() -> None:
    [broker] = resources("StatefulSet")
    [container] = broker["spec"]["template"]["spec"]["containers"]
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"]["path"] in PATHS


def test_selectors_match_pods() -> None:
    pods = [
        each["spec"]["template"]["metadata"]["labels"]
        for kind in ("StatefulSet", "Deployment")
        for each in resources(kind)
    ]
    for service in resources("Service"):
        assert service["spec"]["selector"] in pods
    [budget] = resources("PodDisruptionBudget")
    assert budget["spec"]["selector"]["matchLabels"] in pods


def test_the_compose_file_has_a_group_and_its_monitoring() -> None:
    content = yaml.safe_load((DEPLOY / "compose" / "compose.yml").read_text())
    services = content["services"]
    assert set(services) == {"controller", "broker-a", "broker-b", "prometheus", "grafana"}
    mounted = [
        volume.partition(":")[0]
        for service in services.values()
        for volume in service.get("volumes", ())
        if volume.startswith(".")
    ]
    assert all((DEPLOY / "compose" / path).exists() for path in mounted)
