"""API of a cluster, in a process of its own (`duemq console`)."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from prometheus_client import CollectorRegistry
from starlette.routing import BaseRoute

from duemq.auth.signature import Credentials
from duemq.client import Client, ClientError, Refused
from duemq.configuration.exposure import is_loopback
from duemq.http.admission import Admission, AdmissionRules
from duemq.http.api import ApiApplication
from duemq.http.http_port import HttpPort
from duemq.http.probes import Probes, always_live
from duemq.http.server import serving
from duemq.http.sessions import Sessions
from duemq.net.allowed_networks import Sources, trusted_proxies
from duemq.net.bound_socket import bind
from duemq_common.codes import ResponseCode
from duemq_common.errors import UsageError

READY_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleOptions:
    """Options of the process.

    Attributes:
        has_accounts: Whether each broker checks accounts; then each caller signs in with its own.
        certificate: PEM file with certificate and key of HTTPS; empty: plaintext.
        rate_max: Requests per second of one caller; 0: no limit.
        proxies: Networks of proxies whose `X-Forwarded` headers are used; empty: none.
        is_read_only: Whether each login of the console may only view.
    """

    host: str = "127.0.0.1"
    port: int = 8_088
    has_accounts: bool = False
    certificate: str = ""
    rate_max: int = 20_000
    proxies: str = ""
    is_read_only: bool = False


@asynccontextmanager
async def serving_console(
    connect: Callable[[Credentials | None], Client],
    options: ConsoleOptions,
    pages: Callable[[Admission, Sessions], Sequence[BaseRoute]] = lambda *_: (),
) -> AsyncIterator[int]:
    """Serve the API while the block is active; yield the port.

    Args:
        connect: Returns a client of the cluster with an account.
        pages: Returns the routes of the console.
    Raises:
        UsageError: The port cannot be bound, the certificate cannot be used, or other machines
            could use the API without an account.
    """
    if not options.has_accounts and not is_loopback(options.host):
        raise UsageError(
            f"--host {options.host} would let other machines administer the brokers without an "
            "account: switch accounts on at each broker, and give --accounts"
        )
    rules = AdmissionRules(
        has_accounts=options.has_accounts,
        sources=Sources("--host"),
        rate_max=options.rate_max,
        is_read_only=options.is_read_only,
    )
    sessions = Sessions(connect)

    async def unready_reason() -> str:
        try:
            async with asyncio.timeout(READY_S), connect(None) as client:
                await client.masters()
        except (ClientError, TimeoutError) as error:
            if isinstance(error, Refused) and error.code == ResponseCode.NO_PERMISSION:
                return ""  # a name server with accounts responds; this process has none
            return f"no broker can be found: {error}"
        return ""

    probes = Probes(CollectorRegistry(), live=always_live, ready=unready_reason)
    admission = Admission(rules, time.monotonic)
    others = [*probes.routes(), *pages(admission, sessions)]
    application = ApiApplication(admission, sessions, others)
    with bind(options.host, options.port, key="--port") as bound:
        port = HttpPort(
            bound=bound,
            application=application,
            tls=_tls(options.certificate),
            proxies=trusted_proxies("--proxies", options.proxies),
            resources=sessions,
            on_stop=sessions.stopping.set,
        )
        async with serving([lambda: port]):
            yield int(bound.getsockname()[1])


def _tls(certificate: str) -> ssl.SSLContext | None:
    if not certificate:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(certificate)
    except OSError as error:  # ssl.SSLError is one
        raise UsageError(f"--cert {certificate} cannot be used: {error}") from error
    return context
