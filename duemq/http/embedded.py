"""API of one broker in its process: requests go to the broker over a socket."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable, Sequence

from starlette.routing import BaseRoute

from duemq.auth.access import AccessControl
from duemq.auth.signature import Credentials
from duemq.client import Client
from duemq.configuration.config import BrokerConfig
from duemq.http.admission import Admission, AdmissionRules
from duemq.http.api import ApiApplication
from duemq.http.http_port import HttpPort
from duemq.http.probes import Probes
from duemq.http.sessions import Sessions
from duemq.net.allowed_networks import parse_sources, trusted_proxies
from duemq.net.tls import Tls


def api_port(
    bound: socket.socket,
    address: str,
    config: BrokerConfig,
    *,
    access: AccessControl | None,
    tls: ssl.SSLContext | None,
    broker_tls: Tls,
    probes: Probes,
    pages: Callable[[Admission, Sessions], Sequence[BaseRoute]],
) -> HttpPort:
    """Return the port of the API of one broker.

    Args:
        address: `host:port` of the broker.
        access: Accounts of the broker; None: it has none.
        tls: Context of HTTPS.
        broker_tls: TLS of the broker's own port.
        pages: Returns the routes of the console.
    """

    def connect(credentials: Credentials | None) -> Client:
        context = None
        if broker_tls.server.is_enforced:
            client = broker_tls.client
            context = client.context() if client is not None else own_context()
        name = config.broker_name
        return Client(broker=address, broker_name=name, credentials=credentials, tls=context)

    sources = parse_sources("administerFrom", config.administer_from, (config.broker_ip,))
    rules = AdmissionRules(
        has_accounts=access is not None,
        sources=sources,
        secret=access.gate.secret if access is not None else None,
        rate_max=config.console_rate_max,
        is_read_only=config.console_read_only,
    )
    sessions = Sessions(connect)
    admission = Admission(rules, time.monotonic)
    others = [*probes.routes(), *pages(admission, sessions)]
    application = ApiApplication(admission, sessions, others)
    return HttpPort(
        bound=bound,
        application=application,
        tls=tls,
        proxies=trusted_proxies("consoleProxies", config.console_proxies),
        resources=sessions,
        on_stop=sessions.stopping.set,
    )


def own_context() -> ssl.SSLContext:
    """Return a context for a connection to the own process, whose certificate is not verified."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
