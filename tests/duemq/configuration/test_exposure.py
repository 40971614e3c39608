"""A port that other machines reach is named with its address, its port and its key."""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path

import pytest

from duemq.broker.broker import Broker
from duemq.configuration.exposure import (
    ListeningPort,
    exposure_warning,
    is_loopback,
    keep_store_private,
    warn_of_readable_secrets,
)
from duemq.configuration.settings import resolved, settings_from
from tests.support.loopback_broker import LEVELS, properties_of
from tests.support.running_broker import running, small


@pytest.mark.parametrize(
    ("address", "only_here"),
    [
        ("127.0.0.1", True),
        ("127.3.2.1", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.5", False),
        ("fe80::1%eth0", False),
        ("broker.example", False),
        ("", False),
    ],
)
def test_loopback(address: str, only_here: bool) -> None:
    assert is_loopback(address) == only_here
    listener = ListeningPort(purpose="x", address=address, port=1, key="bindAddress")
    assert (exposure_warning(listener) is None) == only_here


@pytest.mark.finding("B19")
def test_every_open_port_of_a_broker_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    more = {
        "bindAddress": "0.0.0.0",
        "embeddedNamesrvEnable": "true",
        "embeddedNamesrvPort": "0",
        "metricsExporterType": "PROM",
        "metricsPromExporterPort": "0",
    }

    async def main() -> None:
        async with running(small(tmp_path, **more)) as (broker, _):
            assert broker.namesrv is not None
            ports = (broker.port, broker.namesrv.port, broker.metrics_port)
            found = [text for text in caplog.messages if "without authentication" in text]
            assert len(found) == len(ports)
            for port, key in zip(
                ports, ("bindAddress", "bindAddress", "metricsPromExporterHost"), strict=True
            ):
                named = [text for text in found if f"port {port}," in text]
                assert len(named) == 1
                assert f"{key}=127.0.0.1" in named[0]

    asyncio.run(main())


@pytest.mark.finding("B19")
def test_a_broker_on_loopback_is_silent(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with running(small(tmp_path)):
            pass

    asyncio.run(main())
    assert not [text for text in caplog.messages if "without authentication" in text]


@pytest.mark.parametrize(
    ("keys", "address"),
    [
        ({}, "127.0.0.1"),
        ({"authenticationEnabled": "true"}, "0.0.0.0"),
        ({"aclEnable": "true", "rocketmqHome": "/x"}, "0.0.0.0"),
        ({"bindAddress": "0.0.0.0"}, "0.0.0.0"),
        ({"bindAddress": "192.0.2.1", "authenticationEnabled": "true"}, "192.0.2.1"),
    ],
)
def test_without_a_word_other_machines_need_accounts(keys: dict[str, str], address: str) -> None:
    assert resolved(settings_from(keys)).broker.bind_address == address


def test_a_configuration_of_apaches_gets_a_notice_of_what_to_add(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        properties = properties_of(tmp_path)
        del properties["bindAddress"]
        async with Broker(properties, plugins=[LEVELS]) as broker:
            assert broker.config.bind_address == "127.0.0.1"

    with caplog.at_level(logging.WARNING):
        asyncio.run(main())
    assert "listens on 127.0.0.1 only" in caplog.text
    assert "bindAddress=0.0.0.0" in caplog.text


SECRET = {"initAuthenticationUser": '{"username":"root","password":"hidden"}', "listenPort": "1"}


@pytest.mark.parametrize(
    ("mode", "properties", "is_warned"),
    [
        (0o644, SECRET, True),
        (0o600, SECRET, False),
        (0o640, SECRET, False),
        (0o644, {"listenPort": "1", "initAuthenticationUser": ""}, False),
        (None, SECRET, False),
    ],
)
def test_secrets_that_every_user_can_read_are_a_warning(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    mode: int | None,
    properties: dict[str, str],
    is_warned: bool,
) -> None:
    file = tmp_path / "broker.conf"
    if mode is not None:
        file.touch()
        file.chmod(mode)
    warn_of_readable_secrets(file, properties)
    warn_of_readable_secrets(None, properties)
    assert (f"chmod 600 {file}" in caplog.text) == is_warned
    assert ("(initAuthenticationUser)" in caplog.text) == is_warned
    assert "hidden" not in caplog.text


@pytest.mark.finding("3S8")
@pytest.mark.parametrize(
    ("mode", "is_private"), [(None, True), (0o700, True), (0o755, False), (0o750, False)]
)
def test_a_new_store_is_private_and_an_existing_one_stays_as_it_is(
    tmp_path: Path, mode: int | None, is_private: bool
) -> None:
    root, before = tmp_path / "store", os.umask(0o022)
    if mode is not None:
        root.mkdir()
        root.chmod(mode)
    try:
        keep_store_private(root)
        file = root / "commitlog" / "0"
        file.parent.mkdir(parents=True)
        file.touch()
    finally:
        os.umask(before)
    assert file.stat().st_mode & 0o777 == (0o600 if is_private else 0o644)
    assert file.parent.stat().st_mode & 0o777 == (0o700 if is_private else 0o755)
