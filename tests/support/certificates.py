"""Certificates of a test authority, in the files of TLS keys."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import trustme
from cryptography.hazmat.primitives import serialization

EXPIRED = datetime(2021, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class CertificateFiles:
    """PEM files of one certificate."""

    certificate: Path
    key: Path


class Authority:
    """A certificate authority whose certificate is `path`."""

    def __init__(self, home: Path, name: str = "ca") -> None:
        self._home, self._ca = home, trustme.CA()
        self.path = home / f"{name}.pem"
        self._ca.cert_pem.write_to_path(str(self.path))

    def issue(
        self, name: str, host: str = "127.0.0.1", *, not_after: datetime | None = None
    ) -> CertificateFiles:
        """Write a certificate for a host."""
        issued = self._ca.issue_cert(host, not_after=not_after)
        files = CertificateFiles(self._home / f"{name}.crt", self._home / f"{name}.key")
        issued.cert_chain_pems[0].write_to_path(str(files.certificate))
        issued.private_key_pem.write_to_path(str(files.key))
        return files

    def as_pkcs8(self, files: CertificateFiles) -> Path:
        """Write the key in the form that Java's clients read, and return its path."""
        key = serialization.load_pem_private_key(files.key.read_bytes(), None)
        path = files.key.with_suffix(".pkcs8")
        path.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return path

    def client_context(self, files: CertificateFiles | None = None) -> ssl.SSLContext:
        """Return a client's context that trusts this authority only."""
        context = ssl.create_default_context(cafile=str(self.path))
        if files is not None:
            context.load_cert_chain(files.certificate, files.key)
        return context


def trusting_context() -> ssl.SSLContext:
    """Return a client's context that accepts every certificate, as Apache's clients do."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
