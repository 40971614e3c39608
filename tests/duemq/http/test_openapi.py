"""The OpenAPI document: each response of a real broker conforms to it, whatever is requested.

Schemathesis runs as a command: as a plugin it would generate its requests while each worker
collects the tests.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from duemq.http.endpoints import JSON, Endpoint
from duemq.http.openapi import document, read_examples
from tests.support.api_examples import FILE, TEMPORARY, table
from tests.support.extended import extended

CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
)
SAME, OTHERS = ("--generation-deterministic",), ("--generation-database", "none")
FOURTH, ALL = 4, 1
TABLE = table()


@pytest.mark.parametrize(
    ("requests", "choice", "parts"),
    [(3, SAME, FOURTH), extended(200, OTHERS, ALL)],
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

    With few requests, the day chooses every fourth operation.
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


def missing_fields(part: Any, value: Any) -> list[str]:
    """Return the fields of `part` that `value` does not have."""
    if isinstance(part, list):
        pairs = zip(part, value, strict=True)
        return [name for one, other in pairs for name in missing_fields(one, other)]
    if not isinstance(part, dict):
        return []
    below = [missing_fields(part[name], value[name]) for name in part.keys() & value.keys()]
    return [*(part.keys() - value.keys()), *(name for names in below for name in names)]


@pytest.mark.parametrize("endpoint", TABLE, ids=[each.handler.__name__ for each in TABLE])
def test_examples_are_of_the_types_of_the_operation(endpoint: Endpoint) -> None:
    example = read_examples()[endpoint.handler.__name__]
    assert ("request" in example) == (endpoint.body is not None)
    kinds = {"request": endpoint.body, "response": endpoint.result}
    for name, value in example.items():
        made = msgspec.to_builtins(msgspec.convert(value, kinds[name]))
        assert missing_fields(value, made) == []
    [operation] = [
        each
        for path in document(TABLE)["paths"].values()
        for each in path.values()
        if each["operationId"] == endpoint.handler.__name__
    ]
    shown = operation["responses"][str(endpoint.status)]["content"][JSON]["example"]
    assert shown == example["response"]
    if endpoint.body is not None:
        assert operation["requestBody"]["content"][JSON]["example"] == example["request"]


def test_the_file_has_no_other_examples() -> None:
    assert list(read_examples()) == [each.handler.__name__ for each in TABLE]
    assert TEMPORARY.search(FILE.read_text()) is None
