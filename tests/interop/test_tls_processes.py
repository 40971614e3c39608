"""TLS between real processes: a broker and its name server, new certificates, PROXY headers."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from cryptography.x509 import load_der_x509_certificate

from duemq.net.client import RemotingClient
from duemq_common.codes import RequestCode, ResponseCode
from duemq_common.request import Request
from message_store.log.record import decode_record
from tests.support.certificates import EXPIRED, Authority, CertificateFiles
from tests.support.child_process import Child, wait_for_child
from tests.support.duemq_server import ROOT, DueMQ
from tests.support.free_ports import LOOPBACK, listening
from tests.support.raw_connection import RawPeer
from tests.support.server import TEMPLATE_TOPIC, write_properties
from tests.support.wait_until import until

WAIT_S = 120.0
PROXIES = {
    "v1": b"PROXY TCP4 192.0.2.7 198.51.100.1 56324 10911\r\n",
    "v2": b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c"
    + bytes([192, 0, 2, 7, 198, 51, 100, 1])
    + (56_324).to_bytes(2, "big")
    + (10_911).to_bytes(2, "big"),
}


class Processes(DueMQ):
    """Our name server and broker as processes; `context` is the TLS context of accepted clients."""

    def __init__(self, home: Path, context: ssl.SSLContext, keys: Mapping[str, str]) -> None:
        super().__init__(home, keys={"embeddedNamesrvEnable": "false", **keys})
        self.context = context
        self.namesrv: Child | None = None

    def start_namesrv(self) -> None:
        """Start `duemq namesrv` with the same TLS."""
        tls = {key: value for key, value in self.keys.items() if key.startswith("tls.")}
        conf = write_properties(
            self.home / "namesrv.conf",
            {
                "listenPort": str(self.namesrv_port),
                "bindAddress": LOOPBACK,
                "kvConfigPath": str(self.home / "namesrv" / "kvConfig.json"),
                **tls,
            },
        )
        command = [sys.executable, "-m", "duemq", "namesrv", "-c", str(conf)]
        log_path = self.home / "namesrv.log"
        env = {"PYTHONPATH": str(ROOT)}
        self.namesrv = Child("duemq namesrv", command, log_path=log_path, env=env)
        wait_for_child(
            self.namesrv, lambda: listening(self.namesrv_port), seconds=WAIT_S, what="name server"
        )

    def stop(self) -> None:
        """Stop both."""
        super().stop()
        if self.namesrv is not None:
            self.namesrv.stop()

    def ready(self) -> bool:
        """Return whether the broker listens and has registered."""
        return listening(self.broker_port) and asyncio.run(self.has_route(self.context))

    async def has_route(self, context: ssl.SSLContext | None) -> bool:
        """Return whether a client with `context` gets the broker's route from the name server."""
        request = Request(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": TEMPLATE_TOPIC})
        try:
            async with RemotingClient(self.namesrv_address, tls=context) as client:
                return (await client.call(request, timeout_s=WAIT_S)).code == ResponseCode.SUCCESS
        except (OSError, TimeoutError):
            return False


@dataclass(frozen=True, slots=True)
class Rig:
    """Running processes, and the authority of their certificates."""

    processes: Processes
    authority: Authority
    server: CertificateFiles


def mutual_keys(authority: Authority, server: CertificateFiles) -> dict[str, str]:
    user = authority.issue("user")
    return {
        "tls.server.mode": "enforcing",
        "tls.test.mode.enable": "false",
        "tls.server.certPath": str(server.certificate),
        "tls.server.keyPath": str(server.key),
        "tls.server.need.client.auth": "require",
        "tls.server.authClient": "true",
        "tls.server.trustCertPath": str(authority.path),
        "tls.client.authServer": "true",
        "tls.client.trustCertPath": str(authority.path),
        "tls.client.certPath": str(user.certificate),
        "tls.client.keyPath": str(user.key),
    }


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """A name server and a broker that require certificates of clients and of each other."""
    home = tmp_path_factory.mktemp("tls")
    authority = Authority(home)
    server, client = authority.issue("server"), authority.issue("client")
    context = authority.client_context(client)
    with Processes(home, context, mutual_keys(authority, server)) as processes:
        yield Rig(processes, authority, server)


def test_a_broker_registers_by_mutual_tls(rig: Rig) -> None:
    processes, authority = rig.processes, rig.authority
    assert asyncio.run(processes.has_route(processes.context))
    assert not asyncio.run(processes.has_route(None))
    assert not asyncio.run(processes.has_route(authority.client_context()))


@pytest.mark.parametrize("version", PROXIES)
def test_a_proxy_header_before_the_handshake_names_the_client(rig: Rig, version: str) -> None:
    async def main() -> tuple[bytes, int]:
        async with await RawPeer.connect(rig.processes.broker_port) as peer:
            peer.writer.write(PROXIES[version])
            await peer.writer.start_tls(rig.processes.context, server_hostname=LOOPBACK)
            values = ("p", f"proxy-{version}", TEMPLATE_TOPIC, "4", "0", "0", "1", "0", "", "0")
            fields = dict(zip("abcdefghij", values, strict=True))
            peer.send(Request(RequestCode.SEND_MESSAGE_V2, fields, b"body", opaque=1))
            sent = (await peer.read_response()).response
            assert sent.code == ResponseCode.SUCCESS, sent
            offset = int((sent.fields or {})["msgId"][16:], 16)
            view = Request(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(offset)}, opaque=2)
            peer.send(view)
            found = (await peer.read_response()).response
            assert found.code == ResponseCode.SUCCESS, found
            address, port = decode_record(bytes(found.body), offset).born_host
            return address, port

    assert asyncio.run(main()) == (bytes([192, 0, 2, 7]), 56_324)


def serial_of(port: int, context: ssl.SSLContext) -> int:
    """Return the serial number of the certificate that a port serves."""
    with (
        socket.create_connection((LOOPBACK, port)) as plain,
        context.wrap_socket(plain, server_hostname=LOOPBACK) as encrypted,
    ):
        found = encrypted.getpeercert(binary_form=True)
    assert found is not None
    return load_der_x509_certificate(found).serial_number


def test_new_certificates_are_used_without_a_restart_and_without_a_reconnect(rig: Rig) -> None:
    processes, context = rig.processes, rig.processes.context
    ports = (processes.broker_port, processes.namesrv_port)

    def serials() -> list[int]:
        return [serial_of(port, context) for port in ports]

    async def main() -> None:
        topic = Request(RequestCode.GET_TOPIC_CONFIG, {"topic": TEMPLATE_TOPIC, "lo": "true"})
        async with RemotingClient(processes.broker_address, tls=context) as client:
            before, open_connection = await asyncio.to_thread(serials), await client.connect()
            new = rig.authority.issue("new")
            os.replace(new.key, rig.server.key)
            os.replace(new.certificate, rig.server.certificate)

            def changed() -> bool:
                return not set(serials()) & set(before)

            what = "both processes use the new certificate"
            await asyncio.to_thread(until, changed, seconds=WAIT_S, what=what)
            assert (await client.call(topic, timeout_s=WAIT_S)).code == ResponseCode.SUCCESS
            assert await client.connect() is open_connection

    asyncio.run(main())


def test_a_broker_does_not_register_with_a_name_server_whose_certificate_has_expired(
    tmp_path: Path,
) -> None:
    authority = Authority(tmp_path)
    keys = mutual_keys(authority, authority.issue("server", not_after=EXPIRED))
    context = authority.client_context(authority.issue("client"))
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    processes = Processes(tmp_path, context, keys)
    processes.start_namesrv()
    broker = processes.start_broker()
    try:
        log = tmp_path / "broker.log"
        until(
            lambda: "certificate has expired" in log.read_text(),
            seconds=WAIT_S,
            what="the broker reports the certificate",
        )
        assert not asyncio.run(processes.has_route(context))
    finally:
        broker.stop()
        processes.stop()
