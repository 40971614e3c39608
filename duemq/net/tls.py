"""TLS contexts of listening ports and of connections to other servers, reloaded from changed files.

    TlsConfig --> ServerTls --context()--> ssl.SSLContext    for each new connection
                      ^ reload_if_changed(), periodically
    TlsConfig --> ClientTls --context()--> ssl.SSLContext    checks the files itself

A connection keeps its context, so a new certificate closes no connection. While the new files are
unusable, for example when a rotation has replaced only one of them, the old context stays in use.
A change of permissions counts as a change of the file, because it can make the file usable.

Source: TlsHelper, FileWatchService
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

from msgspec import Struct

from duemq.net.certificate_expiry import ExpiryReport
from duemq.net.self_signed import self_signed_certificate
from duemq.net.tls_config import DISABLED, ENFORCING, TlsConfig
from duemq_common.config import expanded
from duemq_common.errors import ConfigError

log = logging.getLogger(__name__)
FileState = tuple[tuple[int, int, int], ...]
AEAD_SUITES: Final = "ECDHE+AESGCM:ECDHE+CHACHA20:DHE+AESGCM"  # of TLS 1.2; 1.3 has no others
_VERIFY = {"none": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "require": ssl.CERT_REQUIRED}


class FileContext:
    """TLS context that is loaded again when its files change.

    Args:
        load: Returns a new context; raises ConfigError if a file cannot be used.
        files: Paths of certificates, keys and authorities.
        users: The connections with this context, for log lines.
    Raises:
        ConfigError: A file cannot be used.
    Attributes:
        current: The context for new connections.
        reload_count: Number of reloads.
        failed: Whether the current files are unusable and the previous context is in use.
    """

    def __init__(
        self, load: Callable[[], ssl.SSLContext], files: Iterable[str], users: str
    ) -> None:
        self._load, self._users = load, users
        self._files = [_expanded(path) for path in files if path]
        self._states = _file_states(self._files)
        self.reload_count = 0
        self.failed = False
        self.current = load()

    def reload_if_changed(self) -> None:
        """Load the files again if one has changed; keep the context on an error."""
        states = _file_states(self._files)
        if states == self._states:
            return
        self._states = states
        try:
            self.current = self._load()
        except ConfigError as error:
            self.failed = True
            log.error(
                "TLS certificates have changed but cannot be used; the old ones stay in use: %s",
                error,
            )
            return
        self.failed = False
        self.reload_count += 1
        log.info("TLS certificates have changed; new %s use the new ones", self._users)


class ServerTls:
    """TLS of the server side.

    Args:
        config: The section, with the values of `tls.config.file`.
    Raises:
        ConfigError: A certificate, key or authority cannot be used.
    """

    def __init__(self, config: TlsConfig) -> None:
        self._config = config
        self._creating = asyncio.Lock()
        self._self_signed: ssl.SSLContext | None = None
        self._from_files: FileContext | None = None
        self._expiry = ExpiryReport("tls.server.certPath", config.server_cert_path)
        if not config.test_mode and config.mode != DISABLED:
            files = (config.server_cert_path, config.server_key_path, config.server_trust_path)
            self._from_files = FileContext(partial(server_context, config), files, "connections")

    @property
    def is_disabled(self) -> bool:
        """Whether TLS connections are refused."""
        return self._config.mode == DISABLED

    @property
    def is_enforced(self) -> bool:
        """Whether plaintext connections are refused."""
        return self._config.mode == ENFORCING

    @property
    def failed(self) -> bool:
        """Whether the current files are unusable and the previous context is in use."""
        return self._from_files is not None and self._from_files.failed

    @property
    def reload_count(self) -> int:
        """Number of reloads."""
        return self._from_files.reload_count if self._from_files is not None else 0

    async def context(self) -> ssl.SSLContext:
        """Return the context for a new connection; in test mode the first call creates it."""
        if self._from_files is not None:
            return self._from_files.current
        async with self._creating:
            if self._self_signed is None:
                self._self_signed = await asyncio.to_thread(self_signed_context)
        return self._self_signed

    def reload_if_changed(self) -> None:
        """Reload the certificates if a file has changed; keep the old ones on an error."""
        if self._from_files is not None:
            self._from_files.reload_if_changed()

    def report_expiry(self, now_ms: int) -> None:
        """Log a line once a day if the certificate has expired or expires soon."""
        if self._from_files is not None:
            self._expiry.report(now_ms, self._from_files.reload_count)


class ClientTls:
    """TLS of connections to name servers and other brokers.

    Args:
        config: The section, with the values of `tls.config.file`.
    Raises:
        ConfigError: A certificate, key or authority cannot be used.
    """

    def __init__(self, config: TlsConfig) -> None:
        files = [] if config.test_mode else _client_files(config)
        self._from_files = FileContext(
            partial(client_context, config), files, "connections to name servers and brokers"
        )

    @property
    def failed(self) -> bool:
        """Whether the current files are unusable and the previous context is in use."""
        return self._from_files.failed

    @property
    def reload_count(self) -> int:
        """Number of reloads."""
        return self._from_files.reload_count

    def reload_if_changed(self) -> None:
        """Reload the certificates if a file has changed; keep the old ones on an error."""
        self._from_files.reload_if_changed()

    def context(self) -> ssl.SSLContext:
        """Return the context for a new connection; reload the certificates if a file changed."""
        self._from_files.reload_if_changed()
        return self._from_files.current


class Tls(Struct, frozen=True):
    """TLS of a process.

    Attributes:
        server: TLS of listening ports.
        client: TLS of connections to other servers; None: plaintext.
    """

    server: ServerTls
    client: ClientTls | None

    @property
    def reload_failed(self) -> bool:
        """Whether current files are unusable and a previous context is in use."""
        return self.server.failed or (self.client is not None and self.client.failed)

    @property
    def reload_count(self) -> int:
        """Number of reloads."""
        clients = self.client.reload_count if self.client is not None else 0
        return self.server.reload_count + clients


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
    return Tls(ServerTls(config), ClientTls(config) if config.connects_by_tls else None)


def server_context(config: TlsConfig) -> ssl.SSLContext:
    """Return a server context with the configured certificates.

    Raises:
        ConfigError: A file cannot be read, or does not match the others.
    """
    context = _new_server_context()
    certificate, key = config.server_cert_path, config.server_key_path
    for name, path in (("tls.server.certPath", certificate), ("tls.server.keyPath", key)):
        if not path:
            reason = "set a PEM file, or tls.test.mode.enable=true for a self-signed certificate"
            raise ConfigError(name, path, reason)
    _load_key(context, "tls.server", certificate, key, config.server_key_password)
    if config.need_client_auth == "none" or not config.auth_client:
        if config.need_client_auth == "require":
            reason = (
                "has no effect while certificates are not verified: set tls.server.authClient=true"
            )
            raise ConfigError("tls.server.need.client.auth", config.need_client_auth, reason)
        return context
    context.verify_mode = _VERIFY[config.need_client_auth]
    _load_authorities(
        context, "tls.server.trustCertPath", config.server_trust_path, ssl.Purpose.CLIENT_AUTH
    )
    return context


def client_context(config: TlsConfig) -> ssl.SSLContext:
    """Return the context for connections to other servers.

    Raises:
        ConfigError: A file cannot be read, or does not match the others.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_ciphers(AEAD_SUITES)
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
    context.set_ciphers(AEAD_SUITES)
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
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        _check_blocks(prefix, certificate, key)
        reason = getattr(error, "reason", None) or str(error)
        explanation = (
            f"cannot be used with {prefix}.keyPath={key}: {reason}. Both must be PEM files of the "
            f"same key pair; an encrypted key needs {prefix}.keyPassword"
        )
        raise ConfigError(f"{prefix}.certPath", certificate, explanation) from error


def _check_blocks(prefix: str, certificate: str, key: str) -> None:
    """Check that both files have a PEM block of their kind, as OpenSSL's error does not name one.

    Raises:
        ConfigError: A file has none.
    """
    for name, path, kind in (
        (f"{prefix}.certPath", certificate, "CERTIFICATE"),
        (f"{prefix}.keyPath", key, "PRIVATE KEY"),
    ):
        with suppress(OSError):
            data = Path(_expanded(path)).read_bytes()
            if f"{kind}-----".encode() not in data:
                reason = f"has no {kind} block, so it is not the right file or not in PEM format"
                raise ConfigError(name, path, f"{reason} ({len(data)} bytes)")


def _load_authorities(context: ssl.SSLContext, name: str, path: str, purpose: ssl.Purpose) -> None:
    if not path:
        context.load_default_certs(purpose)
        return
    _check_readable(name, path)
    try:
        context.load_verify_locations(_expanded(path))
    except OSError as error:  # ssl.SSLError is an OSError
        reason = getattr(error, "reason", None) or str(error)
        explanation = f"has no certificate authority in PEM format: {reason}"
        raise ConfigError(name, path, explanation) from error


def _check_readable(name: str, path: str) -> None:
    try:
        expanded(name, path).open("rb").close()
    except OSError as error:
        raise ConfigError(name, path, f"cannot be read: {error.strerror}") from error


def _expanded(path: str) -> str:
    return os.path.expanduser(path)


def _client_files(config: TlsConfig) -> list[str]:
    files = [config.client_cert_path, config.client_key_path]
    return [*files, config.client_trust_path] if config.auth_server else files


def _file_states(files: list[str]) -> FileState:
    """Return time of the last change in ns, size and inode of each file; zeros if it is absent.

    The change of permissions or of the owner changes the time.
    """
    states = []
    for path in files:
        try:
            status = os.stat(path)
            states.append((status.st_ctime_ns, status.st_size, status.st_ino))
        except OSError:
            states.append((0, 0, 0))
    return tuple(states)
