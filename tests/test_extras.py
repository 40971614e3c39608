"""The extras of the distribution declare the packages that their code needs.

`.ci/extras` installs them into new environments.
"""

from __future__ import annotations

import tomllib
from importlib.metadata import requires, version
from typing import Any

import pytest
from packaging.requirements import Requirement

from tests.support.packages import TOP, folder_of
from tests.test_import_arrows import ARROWS

PROJECT = tomllib.loads((TOP / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]


def needs_of(extra: str) -> dict[str, Requirement]:
    """Return the packages that an extra installs, with our own extras resolved."""
    found: dict[Any, Any] = {}
    for text in EXTRAS[extra]:
        one = Requirement(text)
        if one.name == PROJECT["name"]:
            for other in one.extras:
                found |= needs_of(other)
        else:
            found[one.name] = one
    return found


@pytest.mark.finding("B1")
@pytest.mark.parametrize(("extra", "of_spark"), [("spark", "sql"), ("connect", "connect")])
def test_what_spark_asks_for_is_declared(extra: str, of_spark: str) -> None:
    """pyspark declares no dependencies for SQL; it checks for them when it runs."""
    declared = needs_of(extra)
    always = {Requirement(text).name for text in PROJECT["dependencies"]}
    if of_spark in declared["pyspark"].extras:
        return
    for text in requires("pyspark") or ():
        one = Requirement(text)
        if one.marker is not None and one.marker.evaluate({"extra": of_spark}):
            assert one.name in declared.keys() | always, f"pyspark[{of_spark}] needs {one}"


@pytest.mark.finding("B1")
@pytest.mark.parametrize("extra", EXTRAS)
def test_the_tests_run_with_what_extras_install(extra: str) -> None:
    for name, one in needs_of(extra).items():
        if one.marker is None or one.marker.evaluate():
            assert one.specifier.contains(version(name)), name


@pytest.mark.finding("B28")
def test_the_licence_exists() -> None:
    assert "Apache License" in (TOP / "LICENSE").read_text()
    assert "Version 2.0" in (TOP / "NOTICE").read_text()
    assert PROJECT["license"] == "Apache-2.0"


@pytest.mark.finding("B2")
def test_no_page_names_a_distribution_that_does_not_exist() -> None:
    for page in [TOP / "README.md", *(TOP / "docs").rglob("*.md")]:
        assert "duemq[" not in page.read_text(), page


@pytest.mark.finding("B3")
def test_only_the_packages_of_the_design_are_installed() -> None:
    """`.ci/extras` compares what an installation contains with the same names."""
    tool = tomllib.loads((TOP / "pyproject.toml").read_text())["tool"]
    found = {
        pattern.removesuffix("*") for pattern in tool["setuptools"]["packages"]["find"]["include"]
    }
    assert found == ARROWS.keys()
    assert all((folder_of(name) / "py.typed").is_file() for name in found)
    assert all(name in (TOP / ".ci" / "extras").read_text() for name in found)


def test_public_names_are_imported_lazily() -> None:
    import duemq
    from duemq.broker.broker import Broker
    from timer_store.directory import TimerDirectory

    assert (duemq.Broker, duemq.TimerDirectory) == (Broker, TimerDirectory)
    assert set(duemq.__all__) <= set(dir(duemq))
    with pytest.raises(AttributeError, match="no attribute 'Brokers'"):
        duemq.Brokers  # noqa: B018
