"""Unmodified clients by TLS: a broker with `enforcing`, then one that requires certificates."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from duemq.net.client import RemotingClient
from duemq_common.codes import RequestCode, ResponseCode
from duemq_common.request import Request
from tests.interop.checks import assert_accepted, assert_once, series
from tests.interop.programs import CLIENTS, go_program, java_command
from tests.interop.session import ClientFailed, ClientSession
from tests.support.certificates import Authority, trusting_context
from tests.support.duemq_server import DueMQ
from tests.support.extended import extended
from tests.support.free_ports import listening
from tests.support.server import TEMPLATE_TOPIC, Server
from tests.support.wait_until import until

N = 4
WAIT_S = 60
JAVA_VERSIONS = (extended("4.9.7"), "5.3.3")
BY_TLS = {"JAVA_TOOL_OPTIONS": "-Dtls.enable=true"}


class TlsServer(DueMQ):
    """DueMQ broker with TLS only; `context` is the TLS context of a client that it accepts."""

    def __init__(self, home: Path, context: ssl.SSLContext, keys: Mapping[str, str]) -> None:
        super().__init__(home, keys={"tls.server.mode": "enforcing", **keys})
        self._context = context

    def ready(self) -> bool:
        return listening(self.broker_port) and asyncio.run(self._has_route())

    async def _has_route(self) -> bool:
        request = Request(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": TEMPLATE_TOPIC})
        try:
            async with RemotingClient(self.namesrv_address, tls=self._context) as client:
                return (await client.call(request)).code == ResponseCode.SUCCESS
        except (OSError, TimeoutError):
            return False


@pytest.fixture(scope="module")
def enforcing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A broker that serves TLS only, with the self-signed certificate."""
    home = tmp_path_factory.mktemp("tls")
    with TlsServer(home, trusting_context(), {}) as server:
        yield server


Client = Callable[[Server, Mapping[str, str]], ClientSession]


@pytest.fixture(params=[*JAVA_VERSIONS, "go"])
def client(request: pytest.FixtureRequest, tmp_path: Path) -> Client:
    """Return a client program of one kind."""

    def make(server: Server, env: Mapping[str, str]) -> ClientSession:
        home, namesrv = tmp_path / "client", server.namesrv_address
        if request.param == "go":
            command = [str(go_program(CLIENTS / "go", tls=True)), "session"]
            return ClientSession("go", command, namesrv=namesrv, home=home)
        command = java_command(request.param, home)
        return ClientSession(request.param, command, namesrv=namesrv, home=home, env=env)

    return make


def test_sends_timers_and_consumers_work_by_tls(
    enforcing: Server, client: Client, name: str
) -> None:
    with client(enforcing, BY_TLS) as session:
        sent = session.events("produce", "sent", topic=name, n=N)
        assert_accepted(sent, N)
        session.run("produce", topic=name, n=1, level=1)
        received = session.events(
            "push-consume", "message", topic=name, group=f"g-{name}", until=N + 1
        )
        assert_once(received, sorted([*series(N), *series(1)]))


@pytest.mark.parametrize("version", JAVA_VERSIONS)
def test_a_client_in_plaintext_is_refused(
    enforcing: Server, tmp_path: Path, name: str, version: str
) -> None:
    command = java_command(version, tmp_path)
    namesrv = enforcing.namesrv_address
    with (
        ClientSession("plaintext", command, namesrv=namesrv, home=tmp_path) as session,
        pytest.raises(ClientFailed),
    ):
        session.run("produce", topic=name, n=1)
    log = enforcing.home / "broker.log"
    line = "the peer connected in plaintext, but tls.server.mode=enforcing"
    until(lambda: line in log.read_text(), seconds=WAIT_S, what="the broker has logged the refusal")


@dataclass(frozen=True, slots=True)
class MutualTls:
    """A broker that requires certificates, and the Java options of clients with and without one."""

    server: Server
    presents: str
    verifies_only: str


@pytest.fixture(scope="module")
def mutual(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MutualTls]:
    home = tmp_path_factory.mktemp("mutual")
    authority = Authority(home)
    broker, user = authority.issue("broker"), authority.issue("user")
    keys = {
        "tls.test.mode.enable": "false",
        "tls.server.certPath": str(broker.certificate),
        "tls.server.keyPath": str(broker.key),
        "tls.server.need.client.auth": "require",
        "tls.server.authClient": "true",
        "tls.server.trustCertPath": str(authority.path),
        # the broker is also a client of its own name server
        "tls.client.authServer": "true",
        "tls.client.trustCertPath": str(authority.path),
        "tls.client.certPath": str(user.certificate),
        "tls.client.keyPath": str(user.key),
    }
    pkcs8 = authority.as_pkcs8(user)
    verifies = (
        "-Dtls.enable=true -Dtls.test.mode.enable=false -Dtls.client.authServer=true "
        f"-Dtls.client.trustCertPath={authority.path}"
    )
    presents = f"{verifies} -Dtls.client.certPath={user.certificate} -Dtls.client.keyPath={pkcs8}"
    with TlsServer(home, authority.client_context(user), keys) as server:
        yield MutualTls(server, presents, verifies)


@pytest.mark.extended
@pytest.mark.parametrize("version", JAVA_VERSIONS)
def test_only_a_client_with_a_certificate_is_served(
    mutual: MutualTls, tmp_path: Path, name: str, version: str
) -> None:
    namesrv = mutual.server.namesrv_address
    for options, accepted in ((mutual.presents, True), (mutual.verifies_only, False)):
        home = tmp_path / str(accepted)
        command = java_command(version, home)
        env = {"JAVA_TOOL_OPTIONS": options}
        with ClientSession(version, command, namesrv=namesrv, home=home, env=env) as session:
            if accepted:
                assert_accepted(session.events("produce", "sent", topic=name, n=N), N)
            else:
                with pytest.raises(ClientFailed):
                    session.run("produce", topic=name, n=1)
