"""TLS context of HTTPS, with the certificates of the remoting port.

The protocols offered by ALPN differ from those of the remoting port, which offers h2 for gRPC.
"""

from __future__ import annotations

import ssl
from functools import partial

from duemq.net.tls import FileContext, server_context
from duemq.net.tls_config import TlsConfig


def https_context_of(config: TlsConfig) -> ssl.SSLContext:
    """Return a context whose new connections use the current files.

    Raises:
        ConfigError: A certificate, key or authority cannot be used.
    """
    files = [config.server_cert_path, config.server_key_path, config.server_trust_path]
    current = FileContext(partial(_http_context, config), files, "HTTPS connections")
    context = _http_context(config)

    def choose(connection: ssl.SSLObject, name: str, of_port: ssl.SSLContext) -> None:
        current.reload_if_changed()
        connection.context = current.current

    context.sni_callback = choose  # called without a server name too
    return context


def _http_context(config: TlsConfig) -> ssl.SSLContext:
    context = server_context(config)
    context.set_alpn_protocols(["http/1.1"])
    return context
