"""Log lines about a certificate that expires soon or has expired, once a day."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

log = logging.getLogger(__name__)
DAY_MS: Final = 86_400_000
SOON_MS: Final = 14 * DAY_MS


class ExpiryReport:
    """Report of the expiry of the certificates in one file.

    Args:
        key: Configuration key of the file.
        path: PEM file; the certificate that expires first counts.
    """

    def __init__(self, key: str, path: str) -> None:
        self._key, self._path = key, path
        self._until_ms: int | None = None
        self._version = -1
        self._next_ms = 0

    def report(self, now_ms: int, version: int) -> None:
        """Log a line if the certificate has expired or expires soon, at most once a day.

        Args:
            now_ms: Time in ms since the epoch.
            version: Number of reloads of the file; the file is read when it changes.
        """
        if version != self._version:
            self._version, self._next_ms = version, 0
            self._until_ms = valid_until_ms(Path(self._path))
        until_ms = self._until_ms
        if until_ms is None or now_ms < self._next_ms or now_ms < until_ms - SOON_MS:
            return
        self._next_ms = now_ms + DAY_MS
        until = datetime.fromtimestamp(until_ms / 1_000, UTC).strftime("%Y-%m-%d %H:%M UTC")
        if now_ms < until_ms:
            log.warning(
                "%s=%s: the certificate expires on %s; replace it before, no restart is needed",
                self._key,
                self._path,
                until,
            )
        else:
            log.error(
                "%s=%s: the certificate expired on %s, so clients that verify certificates cannot "
                "connect; replace it, no restart is needed",
                self._key,
                self._path,
                until,
            )


def valid_until_ms(path: Path) -> int | None:
    """Return when the certificate of a PEM file expires, in ms since the epoch.

    Other certificates of a chain follow it in the file; clients may need none of them.

    Returns:
        None if the file has no certificate that can be decoded.
    """
    from cryptography import x509

    try:
        certificates = x509.load_pem_x509_certificates(path.expanduser().read_bytes())
        return int(certificates[0].not_valid_after_utc.timestamp() * 1_000)
    except (OSError, RuntimeError, ValueError, IndexError):  # RuntimeError: no home directory
        return None
