"""Variables and probes in the files of `deploy/`, and their schemas."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml

from duemq.cli.config_show import broker_sections
from duemq.configuration.environment import OF_COMMANDS, variable_of
from duemq.http.probes import PATHS
from duemq.namesrv.config import NamesrvConfig
from duemq_common.config import Properties, options
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


def test_bytecode_of_the_image_is_valid_whatever_the_times_of_its_files() -> None:
    """An image rounds times: with bytecode by times, each start compiled half of the modules."""
    text = (DEPLOY / "container" / "Containerfile").read_text()
    assert "--no-compile" in text
    assert "--invalidation-mode unchecked-hash" in text


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
