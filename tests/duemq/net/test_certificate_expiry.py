"""Log lines about certificates that expire."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from duemq.net.certificate_expiry import DAY_MS, SOON_MS, ExpiryReport, valid_until_ms
from tests.support.certificates import EXPIRED, Authority

UNTIL_MS = int(EXPIRED.timestamp() * 1_000)


def test_a_file_expires_with_its_first_certificate(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    files = authority.issue("server", not_after=EXPIRED)
    later = authority.issue("later", not_after=EXPIRED + timedelta(days=9))
    later.certificate.write_bytes(later.certificate.read_bytes() + files.certificate.read_bytes())
    assert valid_until_ms(files.certificate) == UNTIL_MS
    later_ms = valid_until_ms(later.certificate)
    assert later_ms is not None
    assert timedelta(milliseconds=later_ms - UNTIL_MS) == timedelta(days=9)
    assert datetime.fromtimestamp(UNTIL_MS / 1_000, UTC) == EXPIRED


@pytest.mark.parametrize("data", [None, b"", b"no certificate"])
def test_what_cannot_be_decoded_has_no_expiry(tmp_path: Path, data: bytes | None) -> None:
    path = tmp_path / "file.pem"
    if data is not None:
        path.write_bytes(data)
    assert valid_until_ms(path) is None


def test_expiry_is_reported_once_a_day_until_the_certificate_is_replaced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority = Authority(tmp_path)
    files = authority.issue("server", not_after=EXPIRED)
    report = ExpiryReport("tls.server.certPath", str(files.certificate))
    times = (
        UNTIL_MS - SOON_MS - 1,
        UNTIL_MS - DAY_MS,
        UNTIL_MS - DAY_MS + 1,
        UNTIL_MS,
        UNTIL_MS + 1,
        UNTIL_MS + DAY_MS,
    )
    with caplog.at_level(logging.INFO):
        for now_ms in times:
            report.report(now_ms, 0)
        new = authority.issue("new", not_after=EXPIRED + timedelta(days=99))
        files.certificate.write_bytes(new.certificate.read_bytes())
        report.report(UNTIL_MS + 2 * DAY_MS, 1)
    assert [record.levelname for record in caplog.records] == ["WARNING", "ERROR", "ERROR"]
    lines = [record.getMessage() for record in caplog.records]
    assert "the certificate expires on 2021-01-01 00:00 UTC" in lines[0]
    assert "the certificate expired on 2021-01-01 00:00 UTC" in lines[1]
    assert lines[0].startswith(f"tls.server.certPath={files.certificate}:")
