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


@pytest.mark.parametrize(
    ("requests", "choice"), [(3, SAME), extended(200, OTHERS)], ids=["few", "many"]
)
def test_responses_conform(
    requests: int, choice: tuple[str, ...], shared_api: httpx.Client, tmp_path: Path
) -> None:
    """All limits of the parameters are requested, then random values of each."""
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
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert json.loads(report.read_text())["test_cases"]["generated"] > 1_000


def test_the_document_is_served(shared_api: httpx.Client) -> None:
    served = shared_api.get("/api/v1/openapi.json").json()
    assert served["openapi"].startswith("3.1")
    assert {"/api/v1/messages", "/api/v1/pending/cancel"} <= served["paths"].keys()
    names = [
        operation["operationId"] for path in served["paths"].values() for operation in path.values()
    ]
    assert len(names) == len(set(names))
