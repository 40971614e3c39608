"""Rules and dashboards: checked by promtool, and by a Prometheus that reads a broker's metrics."""

from __future__ import annotations

import json
import re
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.commands import TOP, duemq, start
from tests.support.free_ports import free_ports
from tests.support.requirements import need_commands, skip_without
from tests.support.wait_until import until

PROMETHEUS = TOP / "deploy" / "prometheus"
DASHBOARDS = sorted((TOP / "deploy" / "grafana" / "dashboards").glob("*.json"))
RUNBOOK = TOP / "docs" / "how-to" / "alerts.md"
NAME = re.compile(r"\b(?:duemq|rocketmq|process)_\w+")
WAIT_S = 60
VARIABLES = {"$__rate_interval": "5m", "$instance": ".*", "$topic": ".*", "$group": ".*"}


def promtool(*words: str) -> str:
    with skip_without():
        need_commands("promtool")
    done = subprocess.run(
        ["promtool", *words], cwd=PROMETHEUS, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "words",
    [("check", "rules", "rules.yml"), ("check", "config", "prometheus.yml")],
    ids=lambda words: words[1],
)
def test_the_files_are_valid(words: tuple[str, ...]) -> None:
    assert "SUCCESS" in promtool(*words)


def test_alerts_fire_and_stay_silent() -> None:
    assert "SUCCESS" in promtool("test", "rules", "tests.yml")


def rules() -> list[dict[str, Any]]:
    content = yaml.safe_load((PROMETHEUS / "rules.yml").read_text())
    return [rule for group in content["groups"] for rule in group["rules"]]


def test_each_alert_has_a_section_of_the_runbook() -> None:
    alerts = [rule["alert"] for rule in rules() if "alert" in rule]
    assert re.findall(r"^## (DueMQ\w+)$", RUNBOOK.read_text(), re.M) == alerts
    sections = re.split(r"^## DueMQ\w+$", RUNBOOK.read_text(), flags=re.M)[1:]
    for alert, section in zip(alerts, sections, strict=True):
        assert all(f"**{part}**" in section for part in ("Meaning", "Cause", "Action")), alert


def panels(dashboard: Path) -> list[dict[str, Any]]:
    all_panels: list[dict[str, Any]] = json.loads(dashboard.read_text())["panels"]
    return all_panels


def queries(dashboard: Path) -> list[str]:
    return [target["expr"] for panel in panels(dashboard) for target in panel.get("targets", ())]


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda path: path.stem)
def test_panels_do_not_overlap(dashboard: Path) -> None:
    cells = [
        (x, y)
        for each in (panel["gridPos"] for panel in panels(dashboard))
        for x in range(each["x"], each["x"] + each["w"])
        for y in range(each["y"], each["y"] + each["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert {x for x, _ in cells} == set(range(24))
    numbers = [panel["id"] for panel in panels(dashboard)]
    assert len(set(numbers)) == len(numbers)


class Prometheus:
    """Server that reads a broker's metrics, with the shipped rules."""

    def __init__(self, address: str, metrics: str) -> None:
        self.address, self.metrics = address, metrics

    def get(self, path: str, **fields: str) -> Any:
        url = f"http://{self.address}/api/v1/{path}?{urllib.parse.urlencode(fields)}"
        with urllib.request.urlopen(url, timeout=WAIT_S) as response:
            return json.load(response)["data"]

    def names(self) -> set[str]:
        """Return the names of all series that the broker has or may have."""
        names = set[str]()
        for name, kind in re.findall(r"^# TYPE (\w+) (\w+)$", self.metrics, re.M):
            names |= {f"{name}_bucket"} if kind == "histogram" else {name}
        return names


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    with skip_without():
        need_commands("prometheus")
    directory = tmp_path_factory.mktemp("prometheus")
    port, _ = free_ports(2)
    keys = {"metricsExporterType": "PROM", "metricsPromExporterPort": "0"}
    broker = start(directory, **keys)
    target = f"127.0.0.1:{broker.ready['metrics']}"
    config = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(PROMETHEUS / "rules.yml")]
    config["scrape_configs"][0]["static_configs"] = [{"targets": [target]}]
    (directory / "prometheus.yml").write_text(yaml.safe_dump(config))
    with subprocess.Popen(
        [
            "prometheus",
            f"--config.file={directory / 'prometheus.yml'}",
            f"--storage.tsdb.path={directory / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            for words in (("--level", "1"), ("--at", "+1s"), ("--at", "+1h")):
                assert duemq("send", "T", "x", *words, *broker.where).returncode == 0
            with urllib.request.urlopen(f"http://{target}/metrics", timeout=WAIT_S) as response:
                server = Prometheus(f"127.0.0.1:{port}", response.read().decode())
            until(lambda: _has_evaluated(server), seconds=WAIT_S, what="evaluated rules")
            yield server
        finally:
            process.terminate()
            broker.stop()


def _has_evaluated(server: Prometheus) -> bool:
    try:
        pending = server.get("query", query="duemq_timer_lateness_seconds_count > 0")["result"]
        groups = server.get("rules")["groups"]
    except OSError:
        return False
    return bool(pending) and all(
        rule["health"] != "unknown" for group in groups for rule in group["rules"]
    )


def test_rules_are_evaluated_without_errors_and_alerts(prometheus: Prometheus) -> None:
    groups = prometheus.get("rules")["groups"]
    evaluated = [rule for group in groups for rule in group["rules"]]
    assert len(evaluated) == len(rules())
    assert [rule["name"] for rule in evaluated if rule["health"] != "ok"] == []
    assert [rule["name"] for rule in evaluated if rule.get("state") == "firing"] == []


def test_each_name_exists(prometheus: Prometheus) -> None:
    texts = [rule["expr"] for rule in rules()]
    texts += [query for dashboard in DASHBOARDS for query in queries(dashboard)]
    used = {name for text in texts for name in NAME.findall(text)}
    assert used <= prometheus.names()


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda path: path.stem)
def test_each_query_of_a_dashboard_is_valid(prometheus: Prometheus, dashboard: Path) -> None:
    for query in queries(dashboard):
        for variable, text in VARIABLES.items():
            query = query.replace(variable, text)
        assert prometheus.get("query", query=query)["resultType"] == "vector"
