"""docs/compat.md: its tests exist, it lists all interop tests, and its codes are served."""

from __future__ import annotations

import ast
import asyncio
import re
from collections.abc import Mapping
from functools import cache
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from delayed_delivery.plugin import ENTRY_POINT_GROUP
from duemq.auth.request_table import ROWS, ROWS_BY_MODULE
from duemq.broker.broker import Broker
from duemq.broker.plugins import InstalledPlugin
from duemq.configuration.apache_keys import WITHOUT_EFFECT
from duemq.configuration.settings import key_notices, settings_from
from duemq.net.dispatcher import CheckedHandler, Dispatcher, Handler
from duemq.send.ingest import SEND_CODES
from duemq_common.codes import RequestCode
from duemq_common.config import (
    Option,
    Properties,
    from_properties,
    options,
    to_properties,
    value_text,
)
from tests.support.running_broker import small
from timer_store.config import TimerConfig

TOP = Path(__file__).resolve().parents[2]
TEXT = (TOP / "docs" / "compat.md").read_text()
FULL_NAME = re.compile(r"([\w/]+\.py)`?::(\w+)")
PLUGINS = [
    InstalledPlugin(name, EntryPoint(name, f"{module}.plugin:create_plugin", ENTRY_POINT_GROUP))
    for module in (
        "duemq_migration",
        "spark_reconciliation",
        "schedule_service",
        "timer_store",
        "recurring_schedules",
    )
    for name in [module.removeprefix("duemq_")]
]
WITH_A_CONTROLLER = {RequestCode.NOTIFY_BROKER_ROLE_CHANGED, RequestCode.GET_BROKER_EPOCH_CACHE}
"""Codes that have no handler, or one in another module, without a controller."""
OUR_CODES = frozenset(range(9_000, 10_000))
TIMER_KEYS = dict(re.findall(r"`(timer[A-Z]\w+|mappedFileSizeTimerLog)(?:=([^`]+))?`", TEXT))


@cache
def names_in(file: str) -> frozenset[str]:
    """Return the names of the test functions of a file, and of its classes."""
    tree = ast.parse((TOP / file).read_text())
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    named = (node.name for node in ast.walk(tree) if isinstance(node, functions))
    return frozenset(name for name in named if name.startswith("test_"))


def section(title: str) -> str:
    """Return the text of a section."""
    return TEXT.partition(f"## {title}\n")[2].partition("\n## ")[0]


def client_cells() -> set[tuple[str, str]]:
    """Return (file, test) of every cell of the clients' table; a footnote names a column's file."""
    files = dict(re.findall(r"^\[\^(\w+)\]: `([^`]+)`", TEXT, re.M))
    lines = [line.strip("|").split("|") for line in section("Clients").splitlines() if "|" in line]
    columns = [files[note] for cell in lines[0][1:] for note in re.findall(r"\[\^(\w+)\]", cell)]
    return {
        (file, test)
        for cells in lines[2:]
        for file, cell in zip(columns, cells[1:], strict=True)
        for test in re.findall(r"`(test_\w+)`", cell)
    }


def test_every_listed_test_exists() -> None:
    named = client_cells() | set(FULL_NAME.findall(TEXT))
    assert len(named) > 80
    missing = [f"{file}::{test}" for file, test in sorted(named) if test not in names_in(file)]
    assert not missing


def test_tests_are_listed_with_their_file() -> None:
    """Outside of the table of clients, so that the test above checks them."""
    rest = TEXT.replace(section("Clients"), "")
    whole = [test for _, test in FULL_NAME.findall(rest)]
    assert re.findall(r"(?<![\w/])test_\w+(?!\w|\.py)", rest) == whole


def test_every_interop_test_is_listed() -> None:
    named = client_cells() | set(FULL_NAME.findall(TEXT))
    interop = TOP / "tests" / "interop"
    files = [path.relative_to(TOP).as_posix() for path in interop.glob("test_*.py")]
    there = {(file, test) for file in files for test in names_in(file)}
    assert not there - named


def codes_listed(server: str) -> set[int]:
    """Return the codes in the paragraph of `server`; check their names."""
    paragraph = section("Request codes").partition(f"{server}:\n")[2].partition("\n\n")[0]
    pairs = re.findall(r"(\d+) ([A-Z_0-9]+)", paragraph)
    wrong = [pair for pair in pairs if RequestCode(int(pair[0])).name != pair[1]]
    assert not wrong
    return {int(code) for code, _ in pairs}


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> dict[int, str]:
    """Module of every handler that a dispatcher gets, by request code."""
    modules: dict[int, str] = dict.fromkeys(SEND_CODES, "duemq.send.ingest")
    add = Dispatcher.add

    def recorded(dispatcher: Dispatcher, handlers: Mapping[int, Handler]) -> None:
        for code, handler in handlers.items():
            function = handler.handler if isinstance(handler, CheckedHandler) else handler
            modules.setdefault(code, function.__module__)
        add(dispatcher, handlers)

    monkeypatch.setattr(Dispatcher, "add", recorded)
    return modules


def test_the_request_codes_are_those_served(tmp_path: Path, modules: dict[int, str]) -> None:
    plain_acl = tmp_path / "conf" / "plain_acl.yml"
    plain_acl.parent.mkdir()
    plain_acl.touch(0o600)
    plain_acl.write_text("accounts: []\n")

    async def served(**keys: str) -> tuple[set[int], set[int]]:
        keys |= {"embeddedNamesrvEnable": "true", "embeddedNamesrvPort": "0"}
        async with Broker(small(tmp_path, **keys), plugins=PLUGINS) as broker:
            assert broker.namesrv is not None
            return set(broker.parts.dispatcher) | SEND_CODES, set(broker.namesrv.handlers())

    ours, namesrv = asyncio.run(served(authenticationEnabled="true"))
    ours |= asyncio.run(served(aclEnable="true", rocketmqHome=str(tmp_path)))[0]
    listed = {int(code) for code in re.findall(r"\b9\d{3}\b", section("Request codes"))}
    assert listed == ours & OUR_CODES
    assert codes_listed("Broker") == ours - OUR_CODES
    assert codes_listed("Name server") == namesrv
    assert ROWS.keys() - WITH_A_CONTROLLER == (ours | namesrv) - WITH_A_CONTROLLER
    rows = {row.code: module for module, rows in ROWS_BY_MODULE.items() for row in rows}
    assert {code for code, module in rows.items() if modules.get(code) != module} == (
        WITH_A_CONTROLLER
    )


def test_the_timer_keys_are_found() -> None:
    assert set(TIMER_KEYS) >= {"timerCongestNumEachSlot", "timerPrecisionMs", "timerWheelEnable"}


def value_of(item: Option) -> str:
    """Return the value in the page, or another one than the default."""
    other = not item.default if item.kind is bool else item.default // 2
    return TIMER_KEYS[item.key] or value_text(other)


@pytest.mark.parametrize("key", sorted(TIMER_KEYS))
def test_a_listed_timer_key_is_accepted_and_has_an_effect(key: str) -> None:
    item = next((item for item in options(TimerConfig) if item.key == key), None)
    assert item is not None, f"docs/compat.md names {key}, which no field of TimerConfig has"
    assert key not in WITHOUT_EFFECT
    properties = Properties({key: value_of(item)})
    settings_from(properties)
    assert key_notices(properties, [TimerConfig]) == []
    config = from_properties(TimerConfig, properties)
    assert to_properties(config)[key] == properties[key]
