"""The ledger's schema: upgrades from all earlier versions with data, and no downgrades."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, inspect, text

from duemq_common.ledger import schema
from duemq_common.ledger.engine import make_engine, parse_url
from duemq_common.ledger.errors import (
    LedgerError,
    LedgerNewer,
    LedgerOnlyForward,
    LedgerUnavailable,
)
from duemq_common.ledger.tables import METADATA, VERSION_TABLE
from migration.ledger.reader import MigrationLedger
from migration.ledger.records import (
    EventRecord,
    LedgerLevel,
    MigrationRecord,
    MigrationRun,
    SampleRecord,
    VerificationRecord,
)
from migration.ownership.states import State
from migration.plans.plan import Obstacle, ObstacleKind, Plan, PlannedLevel
from tests.duemq_common.ledger.conftest import Opener

PLAN_AND_RUN = """
    INSERT INTO duemq_identity VALUES (1, 's-1', '/stores/one', 5);
    INSERT INTO duemq_plans VALUES ('p', 's-1', 10, 'anna', 4096);
    INSERT INTO duemq_plan_levels VALUES ('p', 3, 10000, 7, 700, 20, 30, 1, 364, 2);
    INSERT INTO duemq_plan_obstacles VALUES ('p', 0, 'unreadable', 3, 1, 'one is torn', false);
    INSERT INTO duemq_migrations VALUES ('r', 'p', 'live', 11, 'anna', NULL);
    INSERT INTO duemq_events VALUES ('mark 0', 'r', 12, 'route', 3, 'anna', 'on', 0)
"""
DATA = {
    "0001": PLAN_AND_RUN
    + """;
    INSERT INTO duemq_levels VALUES ('r', 3, 'draining', 14, 9, 7, 6, 312, 1, 2, 0, 1.5);
    INSERT INTO duemq_verifications VALUES
        ('r', 3, 13, 6, 'ffffffffffffffff', 6, 'ffffffffffffffff', ''),
        ('r', 3, 14, 6, '0000000000000001', 6, '0000000000000002', 'checksums'),
        ('r', 3, 15, 6, '0000000000000001', 5, '0000000000000001', 'counts')
    """,
    "0002": PLAN_AND_RUN
    + """;
    INSERT INTO duemq_levels VALUES
        ('r', 3, 'draining', 14, 9, 7, 6, 312, 1, 2, 0, 1.5, false, '');
    INSERT INTO duemq_verifications VALUES
        ('r', 3, 13, 6, 'ffffffffffffffff', 6, 'ffffffffffffffff', '', true),
        ('r', 3, 14, 6, '0000000000000001', 6, '0000000000000002', 'checksums', false),
        ('r', 3, 15, 6, '0000000000000001', 5, '0000000000000001', 'counts', false)
    """,
}
"""Rows in a ledger of each earlier version; a new version adds its own."""
REPORTED = MigrationRun(
    migration=MigrationRecord(migration_id="r", plan_id="p", started_ms=11, started_by="anna"),
    plan=Plan(
        plan_id="p",
        store_id="s-1",
        made_ms=10,
        made_by="anna",
        log_end=4_096,
        levels=[
            PlannedLevel(
                level=3,
                delay_ms=10_000,
                pending=7,
                pending_bytes=700,
                first_due_ms=20,
                last_due_ms=30,
                overdue=1,
                unit_bytes=364,
                estimate_ms=2,
            )
        ],
        obstacles=[Obstacle(kind=ObstacleKind.UNREADABLE, level=3, count=1, text="one is torn")],
    ),
    levels=[
        LedgerLevel(
            migration_id="r",
            level=3,
            state=State.DRAINING,
            updated_ms=14,
            fence=9,
            cursor=7,
            moved=6,
            moved_bytes=312,
            excluded=1,
            routed=2,
            rate_per_s=1.5,
        )
    ],
    events=[
        EventRecord(
            key="mark 0",
            migration_id="r",
            at_ms=12,
            kind="route",
            level=3,
            operator="anna",
            text="on",
            mark_offset=0,
        )
    ],
    verifications=[
        VerificationRecord(
            migration_id="r",
            level=3,
            at_ms=13 + number,
            levels_count=6,
            levels_checksum=left,
            timers_count=count,
            timers_checksum=right,
            text=why,
        )
        for number, (left, count, right, why) in enumerate(
            [((1 << 64) - 1, 6, (1 << 64) - 1, ""), (1, 6, 2, "checksums"), (1, 5, 1, "counts")]
        )
    ],
)
"""Expected rows after the upgrade of any version."""


def revisions() -> list[str]:
    scripts = ScriptDirectory(str(schema.HERE))
    return [script.revision for script in scripts.walk_revisions()][::-1]


@pytest.fixture
def engine(url: str) -> Engine:
    return make_engine(parse_url(url))


def fill(connection: Connection, revision: str) -> None:
    schema.upgrade(connection, "test", to=revision)
    for statement in DATA[revision].split(";\n"):
        connection.execute(text(statement))


def tables(engine: Engine) -> set[str]:
    return set(inspect(engine).get_table_names())


def test_every_earlier_version_has_rows_to_upgrade() -> None:
    assert list(DATA) == revisions()[:-1]


@pytest.mark.parametrize("revision", DATA)
def test_an_earlier_version_is_upgraded_with_its_data(
    revision: str, engine: Engine, opener: Opener
) -> None:
    with engine.begin() as connection:
        fill(connection, revision)
    ledger = opener()
    assert ledger.run("r") == REPORTED
    ledger.write([SampleRecord(migration_id="r", at_ms=1)])
    with engine.begin() as connection:
        assert schema.version_of(connection) == schema.newest()
        agrees = text("SELECT agrees FROM duemq_verifications ORDER BY at_ms")
        assert [bool(row[0]) for row in connection.execute(agrees)] == [True, False, False]


@pytest.mark.parametrize("revision", [None, *DATA])
def test_models_and_steps_agree(revision: str | None, engine: Engine) -> None:
    with engine.begin() as connection:
        if revision:
            fill(connection, revision)
        schema.upgrade(connection, "test")
        options: dict[str, Any] = {
            "version_table": VERSION_TABLE,
            "compare_type": True,
            "compare_server_default": True,
        }
        context = MigrationContext.configure(connection, opts=options)
        assert compare_metadata(context, METADATA) == []
        found = inspect(connection)
        for name, table in METADATA.tables.items():
            assert found.get_pk_constraint(name)["name"] == table.primary_key.name


def test_a_step_that_fails_does_not_change_the_ledger(engine: Engine, opener: Opener) -> None:
    with engine.begin() as connection:
        fill(connection, "0001")
        connection.execute(text("CREATE TABLE duemq_samples (x INTEGER)"))  # the last table created
    columns = inspect(engine).get_columns("duemq_levels")
    with pytest.raises(LedgerUnavailable, match="duemq_samples"):
        opener()
    assert len(inspect(engine).get_columns("duemq_levels")) == len(columns)
    with engine.begin() as connection:
        assert schema.version_of(connection) == "0001"
        connection.execute(text("DROP TABLE duemq_samples"))
    assert opener().run("r") == REPORTED


def test_there_is_no_downgrade(engine: Engine) -> None:
    with engine.begin() as connection:
        schema.upgrade(connection, "test")
    for revision in revisions()[:-1]:
        with (
            pytest.raises(
                LedgerOnlyForward, match=r"cannot be downgraded to an older schema.*Move it away"
            ),
            engine.begin() as connection,
        ):
            command.downgrade(schema.config_for(connection), revision)
    with engine.begin() as connection:
        assert schema.version_of(connection) == schema.newest()


@pytest.mark.parametrize("existing", [False, True], ids=["to write", "to read"])
def test_a_newer_ledger_is_refused(
    existing: bool, url: str, engine: Engine, opener: Opener
) -> None:
    opener()
    with engine.begin() as connection:
        connection.execute(text(f"UPDATE {VERSION_TABLE} SET version_num = '9999'"))
    with pytest.raises(LedgerNewer, match=rf"schema is 9999; .* knows up to {schema.newest()}"):
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


def test_processes_may_open_a_new_ledger_concurrently(url: str, opener: Opener) -> None:
    command_line = [sys.executable, "-c", OPEN_AT_ONCE, url]
    pipe = subprocess.PIPE
    some = [subprocess.Popen(command_line, stdin=pipe, stdout=pipe, text=True) for _ in range(4)]
    for process in some:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in some:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in some:
        process.communicate(timeout=60)
    assert [process.returncode for process in some] == [0, 0, 0, 0]
    assert opener().migrations() == []


def test_steps_are_part_of_the_package() -> None:
    """`packages.find` includes directories of this kind, so wheels contain them."""
    assert (schema.HERE / "versions" / "__init__.py").exists()
    assert {path.suffix for path in schema.HERE.rglob("*.*")} <= {".py", ".pyc"}
