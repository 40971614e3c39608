"""Request 25 and a reload: all of a change, or nothing of it."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

import pytest

from delayed_delivery.plugin import PluginBase
from duemq.broker.plugins import PluginSet
from duemq.configuration import config_edit
from duemq_common.codes import RequestCode
from duemq_common.config import Properties, read_properties
from duemq_common.errors import ConfigError, PluginError
from tests.support.running_broker import running, small

CHANGE = RequestCode.UPDATE_BROKER_CONFIG


def written(tmp_path: Path, *more: str) -> Path:
    path = tmp_path / "broker.conf"
    lines = [f"{key}={value}" for key, value in small(tmp_path).items()]
    path.write_text("\n".join([*lines, *more]) + "\n")
    return path


@pytest.mark.finding("A5")
def test_a_request_does_not_open_a_path_of_the_audit(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(small(tmp_path)) as (broker, client):
            body = b"reconcileReport=/x\nreconcileCron=* * * * *\n"
            assert (await client.call(CHANGE, body=body)).code == 16
            assert broker.scheduler.get_job("reconciliation.audit") is None
            assert broker.all_properties()["reconcileReport"] == ""

    asyncio.run(main())


@pytest.mark.finding("A14")
def test_an_escaped_key_does_not_reach_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, "configBlackList=storePathRootDir")
    before = path.read_text()

    async def main() -> None:
        async with running(read_properties(path), config_file=path) as (_, client):
            body = b"x\\nstorePathRootDir\\=/tmp/evil\\n\\#=1\n"
            assert (await client.call(CHANGE, body=body)).code == 1

    asyncio.run(main())
    assert path.read_text() == before


@pytest.mark.finding("A19")
def test_a_refusing_plugin_does_not_change_the_others(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(small(tmp_path)) as (broker, client):
            body = b"migrationRate=7\nmessageDelayLevel=1s bad\n"
            assert (await client.call(CHANGE, body=body)).code == 1
            assert broker.plugins.plugins["migration"].config.rate_per_s == 0  # type: ignore[attr-defined]

    asyncio.run(main())


class Taker(PluginBase):
    """Takes every configuration except one with its own word."""

    def __init__(self, word: str) -> None:
        self.word, self.taken = word, "before"

    def reconfigure(self, properties: dict[str, str]) -> None:  # type: ignore[override]
        if properties.get("a") == self.word:
            raise RuntimeError("no")
        self.taken = properties["a"]


@pytest.mark.finding("A19")
@pytest.mark.parametrize("refusing", range(3))
def test_plugins_take_a_change_together_or_not_at_all(refusing: int) -> None:
    takers = {str(n): Taker("after" if n == refusing else "") for n in range(3)}
    plugins = PluginSet(takers)
    with pytest.raises(PluginError, match=rf"plugin {refusing} "):
        plugins.reconfigure({"a": "after"}, {"a": "before"})
    assert [taker.taken for taker in takers.values()] == ["before"] * 3


def test_a_change_that_a_plugin_refuses_names_its_source() -> None:
    class Refusing(PluginBase):
        def reconfigure(self, properties: Mapping[str, str]) -> None:
            raise ConfigError("a", properties["a"], "no")

    properties = Properties({"a": "after"}, {"a": "broker.conf line 1"})
    with pytest.raises(ConfigError, match=r"a=after \(broker.conf line 1\): no"):
        PluginSet({"one": Refusing()}).reconfigure(properties)


@pytest.mark.finding("A19")
def test_a_file_that_cannot_be_written_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path)
    before = path.read_text()

    def refuse(*names: object) -> None:
        raise OSError(28, "No space left on device")

    async def main() -> None:
        async with running(read_properties(path), config_file=path) as (broker, client):
            for name in ("replace", "fsync"):
                with monkeypatch.context() as patch:
                    patch.setattr(broker_os(), name, refuse)
                    response = await client.call(CHANGE, body=b"transactionCheckMax=3")
                assert response.code == 1
                assert "No space left" in (response.remark or "")
                assert broker.config.transaction_checks_max == 15
            assert (await client.call(CHANGE, body=b"transactionCheckMax=3")).code == 0

    asyncio.run(main())
    assert path.read_text() == before + "transactionCheckMax = 3\n"


@pytest.mark.parametrize(
    ("name", "number"),
    [("open", 13), ("open", 30), ("replace", 1), ("replace", 16)],
    ids=["others'", "read-only", "immutable", "mount point"],
)
def test_a_file_that_is_never_written_stays_and_the_broker_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, number: int
) -> None:
    path = written(tmp_path)
    before = path.read_text()
    function = getattr(broker_os(), name)

    def refuse(target: object, *more: object) -> object:
        if str(target).startswith(str(path)):
            raise OSError(number, os.strerror(number))
        return function(target, *more)

    async def main() -> None:
        async with running(read_properties(path), config_file=path) as (broker, client):
            monkeypatch.setattr(broker_os(), name, refuse)
            assert (await client.call(CHANGE, body=b"transactionCheckMax=3")).code == 0
            assert broker.config.transaction_checks_max == 3

    asyncio.run(main())
    assert path.read_text() == before
    assert list(tmp_path.glob(f"{path.name}?*")) == []


def broker_os() -> ModuleType:
    return config_edit.os  # type: ignore[attr-defined]


@pytest.mark.finding("E11")
def test_request_26_shows_no_password(tmp_path: Path) -> None:
    url = "postgresql://u:p4ss@db/x"
    properties = small(tmp_path, reconcileLedgerUrl=url, migrationLedgerUrl=url, oldUrl=url)
    properties["brokerPluginDisabled"] = "migration"

    async def main() -> None:
        async with running(properties) as (_, client):
            shown = bytes((await client.call(RequestCode.GET_BROKER_CONFIG)).body)
            assert shown.count(b"postgresql://u:***@db/x") == 3
            assert b"p4ss" not in shown

    asyncio.run(main())


@pytest.mark.finding("B24")
def test_a_reload_logs_what_changed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = written(tmp_path)
    caplog.set_level(logging.INFO)

    async def main() -> None:
        read = lambda: read_properties(path)  # noqa: E731
        async with running(read(), config_file=path, read_again=read) as (broker, _):  # type: ignore[no-untyped-call]
            broker.reload()
            assert "configuration reloaded: no effective change" in caplog.messages
            path.write_text(path.read_text() + "transactionCheckMax=3\n")
            broker.reload()
            text = "configuration reloaded: transactionCheckMax=3 (was 15)"
            assert text in caplog.messages

    asyncio.run(main())


def test_a_section_is_checked_before_any_plugin_takes_it() -> None:
    class Checked(Taker):
        def config_class(self) -> type:
            from duemq_migration.config import MigrationConfig

            return MigrationConfig

    first, second = Taker(""), Checked("")
    with pytest.raises(ConfigError):
        PluginSet({"a": first, "b": second}).reconfigure({"a": "after", "migrationRate": "x"})  # type: ignore[dict-item]
    assert (first.taken, second.taken) == ("before", "before")
