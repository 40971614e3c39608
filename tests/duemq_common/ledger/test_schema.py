"""The ledger's schema: created whole or not at all, and only in an empty database."""

from __future__ import annotations

import subprocess
import sys

import pytest
from sqlalchemy import Engine, inspect, text

from duemq_common.ledger import schema
from duemq_common.ledger.engine import make_engine, parse_url
from duemq_common.ledger.errors import LedgerError, LedgerNewer
from duemq_common.ledger.tables import METADATA, VERSIONS
from duemq_migration.ledger.reader import MigrationLedger
from tests.duemq_common.ledger.conftest import Opener


@pytest.fixture
def engine(url: str) -> Engine:
    return make_engine(parse_url(url))


def tables(engine: Engine) -> set[str]:
    return set(inspect(engine).get_table_names())


@pytest.mark.sampled
def test_a_new_ledger_has_all_tables_and_its_version(engine: Engine, opener: Opener) -> None:
    opener()
    opener()
    assert tables(engine) == set(METADATA.tables)
    with engine.begin() as connection:
        assert schema.version_of(connection) == schema.VERSION


@pytest.mark.parametrize("existing", [False, True], ids=["to write", "to read"])
def test_a_ledger_of_another_version_is_refused(
    existing: bool, url: str, engine: Engine, opener: Opener
) -> None:
    opener()
    with engine.begin() as connection:
        connection.execute(text(f"UPDATE {VERSIONS.name} SET version_num = '9999'"))
    with pytest.raises(LedgerNewer, match=rf"schema is 9999; .* knows up to {schema.VERSION}"):
        MigrationLedger.open_existing(url) if existing else opener()


def test_foreign_tables_of_our_names_are_unchanged(engine: Engine, opener: Opener) -> None:
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE duemq_plans (x INTEGER)"))
    with pytest.raises(LedgerError, match="duemq_plans"):
        opener()
    assert tables(engine) == {"duemq_plans"}


OPEN_AT_ONCE = """
import sys
from duemq_common.ledger.ledger import Ledger
from duemq_common.ledger.location import LedgerLocation
print("ready", flush=True)
sys.stdin.readline()
Ledger.open(LedgerLocation(url=sys.argv[1], store_id="s-1", store_path="/"), now_ms=1)
"""


@pytest.mark.sampled
def test_processes_may_open_a_new_ledger_concurrently(url: str, opener: Opener) -> None:
    command_line = [sys.executable, "-c", OPEN_AT_ONCE, url]
    pipe = subprocess.PIPE
    some = [subprocess.Popen(command_line, stdin=pipe, stdout=pipe, text=True) for _ in range(3)]
    for process in some:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in some:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in some:
        process.communicate(timeout=60)
    assert [process.returncode for process in some] == [0, 0, 0]
    assert opener().migrations() == []
