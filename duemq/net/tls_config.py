"""Configuration section of TLS, server and client side.

Apache's broker reads these keys from system properties and from `tls.config.file`; here they may
also be in broker.conf. As in Apache, values of `tls.config.file` take precedence.

Source: TlsSystemConfig, TlsHelper
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from duemq_common.config import option, options, parse_value
from duemq_common.config_text import read_properties
from duemq_common.existence import is_file

DISABLED, PERMISSIVE, ENFORCING = "disabled", "permissive", "enforcing"
NOT_IN_FILE = ("tls.server.mode", "tls.config.file", "tls.enable", "useTLS")


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsConfig:
    """TLS of client ports, and of connections to name servers."""

    mode: str = option(
        PERMISSIVE,
        "tls.server.mode",
        "disabled: plaintext only; permissive: TLS and plaintext on the same port; enforcing: TLS "
        "only.",
        choices=(DISABLED, PERMISSIVE, ENFORCING),
    )
    config_file: str = option(
        "/etc/rocketmq/tls.properties",
        "tls.config.file",
        "File with further `tls.` keys, whose values take precedence; may be absent.",
        unit="path",
    )
    test_mode: bool = option(
        True,
        "tls.test.mode.enable",
        "Use a self-signed certificate made at the first TLS connection, and trust every server. "
        "Set to false to use the configured certificates.",
    )
    server_cert_path: str = option(
        "", "tls.server.certPath", "Certificate chain of the server, PEM.", unit="path"
    )
    server_key_path: str = option(
        "", "tls.server.keyPath", "Private key of the server, PEM.", unit="path"
    )
    server_key_password: str = option(
        "", "tls.server.keyPassword", "Password of the server's private key."
    )
    need_client_auth: str = option(
        "none",
        "tls.server.need.client.auth",
        "Whether clients must present a certificate.",
        choices=("none", "optional", "require"),
    )
    auth_client: bool = option(
        False, "tls.server.authClient", "Verify the certificates that clients present."
    )
    server_trust_path: str = option(
        "",
        "tls.server.trustCertPath",
        "Certificate authorities of clients, PEM; empty: the system's.",
        unit="path",
    )
    use_tls: bool = option(
        False, "useTLS", "Connect to name servers by TLS; implied by tls.server.mode=enforcing."
    )
    tls_enable: bool = option(False, "tls.enable", "Same as `useTLS`.")
    client_cert_path: str = option(
        "", "tls.client.certPath", "Certificate chain for name servers, PEM.", unit="path"
    )
    client_key_path: str = option(
        "", "tls.client.keyPath", "Private key for name servers, PEM.", unit="path"
    )
    client_key_password: str = option(
        "", "tls.client.keyPassword", "Password of the private key for name servers."
    )
    auth_server: bool = option(
        False,
        "tls.client.authServer",
        "Verify the certificate and the host name of name servers.",
    )
    client_trust_path: str = option(
        "",
        "tls.client.trustCertPath",
        "Certificate authorities of name servers, PEM; empty: the system's.",
        unit="path",
    )

    @property
    def connects_by_tls(self) -> bool:
        """Whether connections to other servers use TLS."""
        return self.use_tls or self.tls_enable or self.mode == ENFORCING

    def with_file(self) -> TlsConfig:
        """Return the section with the values of `tls.config.file`, if that file exists.

        Raises:
            ConfigError: The file cannot be read, or has an invalid value.
        """
        path = Path(self.config_file)
        if not self.config_file or not is_file(path):
            return self
        properties = read_properties(path)
        by_key = {item.key: item for item in options(TlsConfig) if item.key not in NOT_IN_FILE}
        values = {
            by_key[key].name: parse_value(by_key[key], properties[key], str(path))
            for key in properties
            if key in by_key
        }
        return replace(self, **values)
