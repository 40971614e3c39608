"""Location of the ledger: URLs without passwords in messages, and imports."""

from __future__ import annotations

import subprocess
import sys

import pytest

from duemq_common.ledger.location import shown_url


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("sqlite:////data/store/duemq.ledger.sqlite",) * 2,
        ("sqlite:////data/a@b:c/duemq.ledger.sqlite",) * 2,
        ("sqlite:///nearby.sqlite",) * 2,
        ("postgresql://anna@host/ledger",) * 2,
        (
            "postgresql://anna:secret@host:5433/ledger?sslmode=require",
            "postgresql://anna:***@host:5433/ledger",
        ),
        (
            "postgres://anna:se%40cret@[::1]:5433/ledger",
            "postgresql://anna:***@[::1]:5433/ledger",
        ),
        ("postgresql://anna:se#c/r?et@host/ledger", "postgresql://anna:***@host/ledger"),
        ("postgresql+psycopg://host/ledger", "postgresql://host/ledger"),
        ("nonsense", "?"),
    ],
)
def test_a_url_for_messages(url: str, shown: str) -> None:
    assert shown_url(url) == shown


def test_the_status_of_a_migration_does_not_import_sqlalchemy() -> None:
    modules = "duemq_migration.views, duemq_common.ledger.writer"
    program = f"import sys, {modules}; print('sqlalchemy' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "False"
