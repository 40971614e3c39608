"""TLS contexts of the server side, reloaded when certificate files change.

    TlsConfig --> ServerTls --context()--> ssl.SSLContext    for each new connection
                      ^ reload_if_changed(), periodically

A connection keeps its context, so a new certificate closes no connection. While the new files are
unusable, for example when a rotation has replaced only one of them, the old context stays in use.

Source: TlsHelper, FileWatchService
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from dataclasses import dataclass
from pathlib import Path

from duemq.net.self_signed import self_signed_certificate
from duemq.net.tls_config import DISABLED, ENFORCING, TlsConfig
from message_store.errors import ConfigError

log = logging.getLogger(__name__)
FileState = tuple[tuple[int, int, int], ...]
_VERIFY = {"none": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "require": ssl.CERT_REQUIRED}


class ServerTls:
    """TLS of the server side.

    Args:
        config: The section, with the values of `tls.config.file`.
    Raises:
        ConfigError: A certificate, key or authority cannot be used.
    Attributes:
        reload_count: Number of reloads.
        failed: Whether the current files are unusable and the previous context is in use.
    """

    def __init__(self, config: TlsConfig) -> None:
        self._config = config
        self._creating = asyncio.Lock()
        self._context: ssl.SSLContext | None = None
        self._files = _certificate_files(config)
        self._state = _file_states(self._files)
        self.reload_count = 0
        self.failed = False
        if not config.test_mode and config.mode != DISABLED:
            self._context = server_context(config)

    @property
    def is_disabled(self) -> bool:
        """Whether TLS connections are refused."""
        return self._config.mode == DISABLED

    @property
    def is_enforced(self) -> bool:
        """Whether plaintext connections are refused."""
        return self._config.mode == ENFORCING

    async def context(self) -> ssl.SSLContext:
        """Return the context for a new connection; in test mode the first call creates it."""
        if self._context is None:
            async with self._creating:
                if self._context is None:
                    self._context = await asyncio.to_thread(self_signed_context)
        return self._context

    def reload_if_changed(self) -> None:
        """Reload the certificates if a file has changed; keep the old ones on an error."""
        if self._config.test_mode or self.is_disabled:
            return
        state = _file_states(self._files)
        if state == self._state:
            return
        self._state = state
        try:
            self._context = server_context(self._config)
        except ConfigError as error:
            self.failed = True
            log.error(
                "TLS certificates have changed but cannot be used; the old ones stay in use: %s",
                error,
            )
            return
        self.failed = False
        self.reload_count += 1
        log.info("TLS certificates have changed; new connections use the new ones")


@dataclass(frozen=True, slots=True)
class Tls:
    """TLS of a process.

    Attributes:
        server: TLS of listening ports.
        client: Context of connections to other servers; None: plaintext.
    """

    server: ServerTls
    client: ssl.SSLContext | None


def load_tls(config: TlsConfig) -> Tls:
    """Load TLS from the section and `tls.config.file`; warn about keys without effect.

    Raises:
        ConfigError: A file cannot be used.
    """
    config = config.with_file()
    paths = {
        "tls.server.certPath": config.server_cert_path,
        "tls.server.keyPath": config.server_key_path,
    }
    named = [key for key, value in paths.items() if value]
    if config.test_mode and named:
        log.warning(
            "%s has no effect: a self-signed certificate is used because tls.test.mode.enable is "
            "true (the default). Set tls.test.mode.enable=false",
            " and ".join(named),
        )
    return Tls(ServerTls(config), client_context(config))


def server_context(config: TlsConfig) -> ssl.SSLContext:
    """Return a server context with the configured certificates.

    Raises:
        ConfigError: A file cannot be read, or does not match the others.
    """
    context = _new_server_context()
    certificate, key = config.server_cert_path, config.server_key_path
    for name, path in (("tls.server.certPath", certificate), ("tls.server.keyPath", key)):
        if not path:
            why = "set a PEM file, or tls.test.mode.enable=true for a self-signed certificate"
            raise ConfigError(name, path, why)
    _load_key(context, "tls.server", certificate, key, config.server_key_password)
    if config.need_client_auth == "none" or not config.auth_client:
        if config.need_client_auth == "require":
            why = (
                "has no effect while certificates are not verified: set tls.server.authClient=true"
            )
            raise ConfigError("tls.server.need.client.auth", config.need_client_auth, why)
        return context
    context.verify_mode = _VERIFY[config.need_client_auth]
    _load_authorities(
        context, "tls.server.trustCertPath", config.server_trust_path, ssl.Purpose.CLIENT_AUTH
    )
    return context


def client_context(config: TlsConfig) -> ssl.SSLContext | None:
    """Return the context for connections to other servers; None: plaintext.

    Raises:
        ConfigError: A file cannot be read, or does not match the others.
    """
    if not config.connects_by_tls:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if config.auth_server and not config.test_mode:
        _load_authorities(
            context, "tls.client.trustCertPath", config.client_trust_path, ssl.Purpose.SERVER_AUTH
        )
    else:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if config.client_cert_path and not config.test_mode:
        key = config.client_key_path or config.client_cert_path
        _load_key(context, "tls.client", config.client_cert_path, key, config.client_key_password)
    return context


def self_signed_context() -> ssl.SSLContext:
    """Return a server context with a new self-signed certificate."""
    context = _new_server_context()
    with self_signed_certificate() as path:
        context.load_cert_chain(path)
    return context


def _new_server_context() -> ssl.SSLContext:
    """Return a context without certificates that offers h2, which gRPC clients require."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_alpn_protocols(["h2"])
    return context


def _load_key(
    context: ssl.SSLContext, prefix: str, certificate: str, key: str, password: str
) -> None:
    for name, path in ((f"{prefix}.certPath", certificate), (f"{prefix}.keyPath", key)):
        _check_readable(name, path)
    try:
        # always pass a password: without one, OpenSSL prompts on the terminal
        context.load_cert_chain(_expanded(certificate), _expanded(key), password=password or " ")
    except (ssl.SSLError, ValueError) as error:
        reason = getattr(error, "reason", None) or str(error)
        why = (
            f"cannot be used with {prefix}.keyPath={key}: {reason}. Both must be PEM files of the "
            f"same key pair; an encrypted key needs {prefix}.keyPassword"
        )
        raise ConfigError(f"{prefix}.certPath", certificate, why) from error


def _load_authorities(context: ssl.SSLContext, name: str, path: str, purpose: ssl.Purpose) -> None:
    if not path:
        context.load_default_certs(purpose)
        return
    _check_readable(name, path)
    try:
        context.load_verify_locations(_expanded(path))
    except ssl.SSLError as error:
        why = f"has no certificate authority in PEM format: {error.reason or error}"
        raise ConfigError(name, path, why) from error


def _check_readable(name: str, path: str) -> None:
    try:
        Path(_expanded(path)).open("rb").close()
    except OSError as error:
        raise ConfigError(name, path, f"cannot be read: {error.strerror}") from error


def _expanded(path: str) -> str:
    return os.path.expanduser(path)


def _certificate_files(config: TlsConfig) -> list[str]:
    paths = (config.server_cert_path, config.server_key_path, config.server_trust_path)
    return [_expanded(path) for path in paths if path]


def _file_states(files: list[str]) -> FileState:
    """Return modification time in ns, size and inode of each file; zeros for an absent file."""
    found = []
    for path in files:
        try:
            status = os.stat(path)
            found.append((status.st_mtime_ns, status.st_size, status.st_ino))
        except OSError:
            found.append((0, 0, 0))
    return tuple(found)
