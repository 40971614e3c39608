"""The documentation agrees with the code."""

from __future__ import annotations

import configparser
import re
from functools import cache
from pathlib import Path

import pytest

from duemq.cli.config_show import broker_sections
from duemq.configuration.apache_keys import WITHOUT_EFFECT
from duemq.namesrv.config import NamesrvConfig
from duemq_common.config import Properties, options, read_properties
from tests.support.reference_pages import PAGES as GENERATED

TOP = Path(__file__).resolve().parent.parent
PAGES = [*TOP.glob("*.md"), *(TOP / "docs").rglob("*.md"), TOP / "benchmarks" / "README.md"]
LINK = re.compile(r"\]\(([^)#]+)(?:#[^)]*)?\)")
TEST_NAME = re.compile(r"`((?:[\w.]+/)*test_\w+\.py)(?:::(\w+))?`")
PATTERNS = {"tests/x/test_y.py", "tests/migration/test_y.py"}  # where the test of a file is
SHIPPED = ("broker.conf", "namesrv.conf")


def name_of(path: Path) -> str:
    return path.relative_to(TOP).as_posix()


@pytest.mark.parametrize("page", GENERATED)
def test_the_reference_is_up_to_date(page: str) -> None:
    assert (TOP / "docs" / "reference" / page).read_text() == GENERATED[page](), "run `make docs`"


def test_link_targets_exist() -> None:
    targets = [(page, target) for page in PAGES for target in LINK.findall(page.read_text())]
    inside = [(page, target) for page, target in targets if "://" not in target]
    assert len(inside) > 300
    assert [(page, t) for page, t in inside if not (page.parent / t).exists()] == []


def test_the_readme_has_a_link_to_each_page() -> None:
    linked = set(LINK.findall((TOP / "README.md").read_text()))
    pages = {
        name_of(page)
        for top in ("how-to", "reference")
        for page in (TOP / "docs" / top).glob("*.md")
    }
    assert pages - linked == set()


def test_named_tests_exist() -> None:
    """A page names the path of a test from the top directory, as pytest takes it."""
    names = {(page, *name) for page in PAGES for name in TEST_NAME.findall(page.read_text())}
    assert len(names) > 200
    for page, file, test in sorted(names):
        assert file in PATTERNS or (TOP / file).is_file(), f"{page}: {file} is no path from the top"
        if test:
            source = (TOP / file).read_text()
            named = re.search(rf"\bdef {test}\(|^{test} = \w+\.TestCase$", source, re.M)
            assert named, f"{page}: {file} has no {test}"


@cache
def known_keys() -> frozenset[str]:
    sections = [*broker_sections(Properties()), NamesrvConfig]
    return frozenset(item.key for section in sections for item in options(section))


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_configuration_has_known_keys_only(name: str) -> None:
    path = TOP / "config" / name
    commented = re.findall(r"^# (\w+) = ", path.read_text(), re.M)
    assert {*read_properties(path), *commented} <= known_keys()


def test_keys_named_by_a_page_exist() -> None:
    key = re.compile(r"`([a-z]+(?:[A-Z][a-z0-9]*)+)(?:=[^`]*)?`")
    pages = [page for page in PAGES if "how-to" in page.parts]
    words = {(word, name_of(page)) for page in pages for word in key.findall(page.read_text())}
    assert len(words) > 100
    keys = known_keys() | set(WITHOUT_EFFECT)
    assert [each for each in sorted(words) if each[0] not in keys] == []


def client_cells() -> list[tuple[str, str]]:
    """Return (test file, test) of every cell of the clients' table."""
    text = (TOP / "docs" / "compat.md").read_text()
    files = dict(re.findall(r"^\[\^(\w+)\]: `([^`]+)`", text, re.M))
    lines = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("| ")]
    header = next(cells for cells in lines if "[^java]" in cells[1])
    columns = [files[re.findall(r"\[\^(\w+)\]", cell)[0]] for cell in header[1:]]
    return [
        (file, test)
        for cells in lines
        if len(cells) == len(header)
        for file, cell in zip(columns, cells[1:], strict=True)
        for test in re.findall(r"`(test_\w+)`", cell)
    ]


def test_tests_in_the_clients_table_exist() -> None:
    cells = client_cells()
    assert len(cells) > 50
    for file, test in cells:
        source = (TOP / file).read_text()
        assert re.search(rf"\bdef {test}\(", source), f"{file} has no {test}"


def test_every_client_test_is_in_the_table() -> None:
    shown = set(client_cells())
    for file in {file for file, _ in shown}:
        tests = re.findall(r"^def (test_\w+)\(", (TOP / file).read_text(), re.M)
        missing = [test for test in tests if (file, test) not in shown]
        assert not missing, f"docs/compat.md lacks {missing} of {file}"


def test_the_shipped_logging_configuration_is_complete() -> None:
    parser = configparser.RawConfigParser()
    parser.read(TOP / "config" / "logging.ini")
    assert set(parser["loggers"]["keys"].split(",")) == {"root", "apscheduler"}
    assert "RotatingFileHandler" in parser["handler_file"]["class"]
