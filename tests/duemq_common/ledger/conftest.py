"""Fixtures for tests on SQLite and on a real PostgreSQL server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from duemq_common.ledger.location import BUSY_MS, LedgerLocation
from duemq_migration.ledger.reader import MigrationLedger
from tests.duemq_common.ledger.postgres import Server, private_server
from tests.support.requirements import skip_without

NOW_MS = 1_795_278_600_000
Opener = Callable[..., MigrationLedger]


def open_ledger(
    url: str, *, store_id: str = "s", store_path: str = "/", busy_ms: int = BUSY_MS
) -> MigrationLedger:
    location = LedgerLocation(url=url, store_id=store_id, store_path=store_path, busy_ms=busy_ms)
    return MigrationLedger.open(location, now_ms=NOW_MS)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    with skip_without(), private_server() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the URL of an empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'ledger.sqlite'}"
    server: Server = request.getfixturevalue("postgres")
    return server.new_database()


@pytest.fixture
def opener(url: str) -> Opener:
    """Return a function that opens the ledger of store `s-1`."""

    def opened(store_id: str = "s-1", busy_ms: int = 2_000) -> MigrationLedger:
        return open_ledger(url, store_id=store_id, store_path="/stores/one", busy_ms=busy_ms)

    return opened
