"""The OpenAPI document: each response of a real broker conforms to it, whatever is requested.

Schemathesis runs as a command: as a plugin it would generate its requests while each worker
collects the tests.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.support.extended import extended

CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
)
SAME, OTHERS = ("--generation-deterministic",), ("--generation-database", "none")
HALF, ALL = 2, 1


@pytest.mark.parametrize(
    ("requests", "choice", "parts"),
    [(3, SAME, HALF), extended(200, OTHERS, ALL)],
    ids=["few", "many"],
)
def test_responses_conform(
    requests: int,
    choice: tuple[str, ...],
    parts: int,
    shared_api: httpx.Client,
    tmp_path: Path,
    seed: int,
) -> None:
    """All limits of the parameters are requested, then random values of each.

    With few requests, the day chooses every second operation.
    """
    report = tmp_path / "report.json"
    options = {
        "--phases": "examples,coverage,fuzzing",
        "--checks": ",".join(CHECKS),
        "--max-examples": str(requests),
        "--suppress-health-check": "all",
        "--warnings": "off",
        "--report-json-path": str(report),
    }
    command = [sys.executable, "-W", "ignore", "-m", "schemathesis.cli", "run"]
    command += [f"{shared_api.base_url}/api/v1/openapi.json", "--continue-on-failure", *choice]
    command += [text for option in options.items() for text in option]
    for name in operations(shared_api)[seed % parts :: parts]:
        command += ["--include-operation-id", name]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert json.loads(report.read_text())["test_cases"]["generated"] > 1_000 / parts


def operations(api: httpx.Client) -> list[str]:
    """Return the ids of all operations, in the order of the document."""
    paths = api.get("/api/v1/openapi.json").json()["paths"]
    return [operation["operationId"] for path in paths.values() for operation in path.values()]


def test_the_document_is_served(shared_api: httpx.Client) -> None:
    served = shared_api.get("/api/v1/openapi.json").json()
    assert served["openapi"].startswith("3.1")
    assert {"/api/v1/messages", "/api/v1/pending/cancel"} <= served["paths"].keys()
    names = operations(shared_api)
    assert len(names) == len(set(names))
