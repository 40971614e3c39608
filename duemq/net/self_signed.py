"""Self-signed certificate for TLS without configured certificates, like Apache's test mode."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Final

COMMON_NAME: Final = "duemq self-signed"
VALID_FROM: Final = datetime(2020, 1, 1, tzinfo=UTC)
VALID_FOR: Final = timedelta(days=365 * 100)


@contextmanager
def self_signed_certificate() -> Iterator[str]:
    """Yield the path of a temporary PEM file with a new P-256 key and its certificate.

    `ssl` loads keys from files only. The file is readable by its owner, and removed on exit.
    """
    descriptor, path = tempfile.mkstemp(prefix="duemq-tls-", suffix=".pem")
    try:
        with open(descriptor, "wb") as file:
            file.write(_key_and_certificate())
        yield path
    finally:
        os.unlink(path)


def _key_and_certificate() -> bytes:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, COMMON_NAME)])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(VALID_FROM)
        .not_valid_after(VALID_FROM + VALID_FOR)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(
        pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return private + certificate.public_bytes(pem)
