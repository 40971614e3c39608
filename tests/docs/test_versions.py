"""docs/reference/versions.md names the versions that the tests use."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from packaging.specifiers import SpecifierSet

from tests.interop import apache, apache_proxy, programs

TOP = Path(__file__).resolve().parents[2]
CLIENTS = TOP / "tests" / "interop" / "clients"
ROWS = dict(
    re.findall(
        r"^\| ([^|]+) \| ([^|]+) \|$", (TOP / "docs/reference/versions.md").read_text(), re.M
    )
)


def versions_of(start: str) -> list[str]:
    """Return the versions in the row that begins with a text."""
    [cell] = [cell for title, cell in ROWS.items() if title.startswith(start)]
    return cell.split(", ")


def version_of_module(directory: str, module: str) -> str:
    """Return the version of a Go module that a client program requires."""
    match = re.search(rf"{module} v(\S+)", (CLIENTS / directory / "go.mod").read_text())
    assert match
    return match[1]


def test_python_versions_are_those_of_the_metadata() -> None:
    project = tomllib.loads((TOP / "pyproject.toml").read_text())["project"]
    classifiers = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    assert versions_of("Python (") == classifiers
    supported = SpecifierSet(project["requires-python"])
    assert [f"3.{minor}" for minor in range(30) if f"3.{minor}" in supported] == classifiers


def test_brokers_are_those_of_the_tests() -> None:
    assert versions_of("Apache's brokers") == [*apache.VERSIONS, apache.NEWEST]
    others = [*apache.VERSIONS, apache.OTHERS[apache.NEWEST]]
    assert versions_of("Apache's name servers") == others
    assert versions_of("Java client, remoting") == others
    assert versions_of("Apache's controller") == [*apache.CONTROLLER_VERSIONS]
    assert versions_of("Apache's proxy") == [*apache_proxy.VERSIONS]


def test_clients_are_those_of_the_tests() -> None:
    cargo = tomllib.loads((CLIENTS / "rust" / "Cargo.toml").read_text())
    constraints = (TOP / "constraints.txt").read_text()
    assert versions_of("Go client, remoting") == [version_of_module("go", "rocketmq-client-go/v2")]
    assert f"rocketmq=={versions_of('C++ client')[0]}\n" in constraints
    assert versions_of("Java client, gRPC") == [programs.GRPC_JAVA[1]]
    assert versions_of("Go client, gRPC") == [version_of_module("go_v5", "golang/v5")]
    assert versions_of("Python client, gRPC") == [programs.GRPC_PYTHON.partition("==")[2]]
    assert versions_of("Rust client") == [cargo["dependencies"]["rocketmq"].lstrip("=")]
    assert programs.GRPC_NODE.endswith(f"@{versions_of('Node.js client')[0]}")
