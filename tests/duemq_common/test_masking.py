"""Passwords are masked in all output."""

from __future__ import annotations

import pytest

from duemq.cli.config_show import broker_sections
from duemq.namesrv.config import NamesrvConfig
from duemq_common.config import Properties, options
from duemq_common.errors import ConfigError
from duemq_common.masking import MASK, masked


@pytest.mark.finding("E11")
@pytest.mark.parametrize(
    ("key", "value", "shown"),
    [
        ("reconcileLedgerUrl", "postgresql://u:p4ss@db/x", "postgresql://u:***@db/x"),
        ("reconcileLedgerUrl", "postgresql://u:p@4/s:s@db:5432/x", "postgresql://u:***@db:5432/x"),
        ("reconcileLedgerUrl", "postgresql://:p4ss@db/x", "postgresql://:***@db/x"),
        (
            "x",
            "postgresql://db/x?user=u&password=p4ss&a=1",
            "postgresql://db/x?user=u&password=***&a=1",
        ),
        ("x", "postgresql://db/x?sslpassword=p4ss", "postgresql://db/x?sslpassword=***"),
        ("migrationLedgerUrl", "sqlite:////a/b", "sqlite:////a/b"),
        ("migrationLedgerUrl", "postgresql://u@db/x", "postgresql://u@db/x"),
        ("namesrvAddr", "a:1;b:2", "a:1;b:2"),
        ("someSecretKey", "p4ss", MASK),
        ("db.password", "p4ss", MASK),
        ("aclAccessKey", "p4ss", MASK),
        ("db.password", "", ""),
    ],
)
def test_passwords_are_masked(key: str, value: str, shown: str) -> None:
    assert masked(key, value) == shown


@pytest.mark.finding("E11")
def test_an_error_about_a_value_shows_no_password() -> None:
    error = ConfigError("reconcileLedgerUrl", "mysql://u:p4ss@db/x", "is not served")
    assert "p4ss" not in str(error)


def test_defaults_are_not_masked() -> None:
    for section in (*broker_sections(Properties()), NamesrvConfig):
        for item in options(section):
            assert masked(item.key, str(item.default)) == str(item.default)
