"""TLS of a whole broker: its name server, its metrics, the commands."""

from __future__ import annotations

import asyncio
import urllib.request
from pathlib import Path

import pytest

from duemq.broker.broker import Broker
from duemq.cli.options import Target
from duemq.client import Admin
from duemq_common.errors import ConfigError
from tests.support.certificates import Authority, trusting_context
from tests.support.loopback_broker import LEVELS, properties_of
from tests.support.raw_connection import WAIT_S
from tests.support.wait_until import until


def certificates(home: Path) -> tuple[Authority, dict[str, str]]:
    """Return an authority, and keys of a broker that requires certificates of it."""
    authority = Authority(home)
    broker, user = authority.issue("broker"), authority.issue("user")
    (home / "user.pem").write_bytes(user.key.read_bytes() + user.certificate.read_bytes())
    keys = {
        "tls.server.mode": "enforcing",
        "tls.test.mode.enable": "false",
        "tls.server.certPath": str(broker.certificate),
        "tls.server.keyPath": str(broker.key),
        "tls.server.need.client.auth": "require",
        "tls.server.authClient": "true",
        "tls.server.trustCertPath": str(authority.path),
        "embeddedNamesrvEnable": "true",
        "embeddedNamesrvPort": "0",
    }
    return authority, keys


def test_commands_connect_by_tls(tmp_path: Path) -> None:
    async def main() -> None:
        authority, keys = certificates(tmp_path)
        async with Broker(properties_of(tmp_path / "store", **keys), plugins=[LEVELS]) as broker:
            target = Target(
                namesrv=broker.namesrv_address,
                tls_ca=str(authority.path),
                tls_cert=str(tmp_path / "user.pem"),
            )
            async with target.admin() as admin:
                assert [master.address for master in await admin.masters()] == [broker.address]
                await admin.view(broker.address, "schedule_service.levels")
            for refused in (None, trusting_context()):
                async with Admin(broker.namesrv_address, tls=refused) as admin:
                    with pytest.raises(ConnectionError):
                        await admin.masters()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("mode", "tls", "hint"),
    [("disabled", True, r"leave out tls \(--tls\)"), ("enforcing", False, r"give tls \(--tls\)")],
)
def test_a_command_names_the_cause_if_the_broker_serves_the_other_protocol(
    tmp_path: Path, mode: str, tls: bool, hint: str
) -> None:
    async def main() -> None:
        keys = {"tls.server.mode": mode}
        async with Broker(properties_of(tmp_path, **keys), plugins=[LEVELS]) as broker:
            target = Target(broker=broker.address, tls=tls)
            async with target.admin() as admin:
                with pytest.raises(ConnectionError, match=hint):
                    await admin.view(broker.address, "schedule_service.levels")

    asyncio.run(main())


def test_a_broker_registers_by_tls(tmp_path: Path) -> None:
    async def main() -> None:
        authority, keys = certificates(tmp_path)
        user = authority.issue("other")
        async with Broker(properties_of(tmp_path / "a", **keys), plugins=[LEVELS]) as first:
            client_keys = {
                "namesrvAddr": first.namesrv_address,
                "brokerName": "second",
                "useTLS": "true",
                "tls.test.mode.enable": "false",
                "tls.server.certPath": str(user.certificate),
                "tls.server.keyPath": str(user.key),
                "tls.client.authServer": "true",
                "tls.client.trustCertPath": str(authority.path),
                "tls.client.certPath": str(user.certificate),
                "tls.client.keyPath": str(user.key),
            }
            properties = properties_of(tmp_path / "b", **client_keys)
            async with Broker(properties, plugins=[LEVELS]):
                assert first.namesrv is not None
                table = first.namesrv.table

                def registered() -> bool:
                    return table.address_of("second", 0) is not None

                what = "the second broker is registered"
                await asyncio.to_thread(until, registered, seconds=WAIT_S, what=what)

    asyncio.run(main())


def test_metrics_count_tls_connections(tmp_path: Path) -> None:
    async def main() -> str:
        changes = {"metricsExporterType": "PROM", "metricsPromExporterPort": "0"}
        changes["metricsPromExporterHost"] = "127.0.0.1"
        async with (
            Broker(properties_of(tmp_path, **changes), plugins=[LEVELS]) as broker,
            Admin(broker=broker.address) as plain,
            Admin(broker=broker.address, tls=trusting_context()) as encrypted,
        ):
            for admin in (plain, encrypted):
                await admin.view(broker.address, "schedule_service.levels")
            url = f"http://127.0.0.1:{broker.metrics_port}/metrics"
            return await asyncio.to_thread(lambda: urllib.request.urlopen(url).read().decode())

    text = asyncio.run(main())
    assert "\nduemq_connections 2.0" in text
    assert "\nduemq_tls_connections 1.0" in text
    assert "\nduemq_tls_reload_failed 0.0" in text


def test_a_certificate_that_cannot_be_used_prevents_the_start(tmp_path: Path) -> None:
    async def main() -> None:
        changes = {"tls.test.mode.enable": "false", "tls.server.certPath": str(tmp_path / "no.pem")}
        with pytest.raises(ConfigError, match=r"tls\.server\.keyPath"):
            async with Broker(properties_of(tmp_path, **changes), plugins=[LEVELS]):
                pass

    asyncio.run(main())
