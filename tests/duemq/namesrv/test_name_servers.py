"""Name servers that a broker registers with."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from duemq.configuration.config import BrokerConfig
from duemq.namesrv.name_servers import addresses_of
from tests.support.free_ports import free_ports
from tests.support.running_broker import running, small

Run = Callable[..., Any]


@pytest.mark.finding("3C8")
@pytest.mark.parametrize(
    ("addresses", "embedded", "expected"),
    [
        ("127.0.0.1:9876;10.0.0.7:9876", True, ["10.0.0.7:9876"]),
        ("localhost:9876;192.0.2.1:9876;[::1]:9876", True, []),
        ("127.0.0.1:9877", True, ["127.0.0.1:9877"]),
        ("127.0.0.1:9876", False, ["127.0.0.1:9876"]),
    ],
)
def test_the_embedded_name_server_is_not_registered_with_again(
    addresses: str, embedded: bool, expected: list[str]
) -> None:
    config = BrokerConfig(
        namesrv_addresses=addresses, embedded_namesrv_enable=embedded, broker_ip="192.0.2.1"
    )
    assert addresses_of(config) == expected


@pytest.mark.finding("3C8")
def test_no_warning_about_the_embedded_name_server(
    run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    [port] = free_ports(1)
    more = {"embeddedNamesrvPort": str(port), "namesrvAddr": f"127.0.0.1:{port}"}

    async def main() -> None:
        properties = small(tmp_path, embeddedNamesrvEnable="true", **more)
        async with running(properties) as (broker, _):
            assert broker.namesrv is not None
            assert not broker.registrar.links

    with caplog.at_level(logging.WARNING):
        run(main())
    assert "not registered" not in caplog.text
