"""What is known of a ledger without SQLAlchemy says what SQLAlchemy would."""

from __future__ import annotations

import subprocess
import sys

import pytest

from message_store.ledger.defaults import shown_text
from message_store.ledger.engine import parse_url, shown


@pytest.mark.parametrize(
    "url",
    [
        "sqlite:////data/store/duemq.ledger.sqlite",
        "sqlite:///beside.sqlite",
        "postgresql://anna@host/ledger",
        "postgresql://anna:secret@host:5433/ledger?sslmode=require",
        "postgres://anna:se%40cret@[::1]:5433/ledger",
        "postgresql+psycopg://host/ledger",
    ],
)
def test_a_url_for_messages(url: str) -> None:
    assert shown_text(url) == shown(parse_url(url))
    assert "secret" not in shown_text(url)
    assert "cret" not in shown_text(url)


def test_the_status_of_a_migration_does_not_wait_for_sqlalchemy() -> None:
    program = (
        "import sys, migration.views, migration.ledger.account; print('sqlalchemy' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "False"
