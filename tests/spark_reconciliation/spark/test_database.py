"""Tables of a real PostgreSQL server: zones, nulls, errors, and the commands of the how-to page."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from duemq_common.clock import FakeClock
from duemq_common.errors import UsageError
from spark_reconciliation.engine import use_engine_of
from spark_reconciliation.jobs.outside import TableComparison
from spark_reconciliation.jobs.run import AuditRequest, run_audit
from spark_reconciliation.spark.database import without_secrets
from spark_reconciliation.spark.outside_tables import OutsideTable, read_outside
from tests.duemq_common.ledger.postgres import Server, private_server
from tests.spark_reconciliation.jobs.test_outside import Campaign, campaign, iso
from tests.support.commands import environment
from tests.support.free_ports import free_ports
from tests.support.maven import fetch_jar, jar_folder
from tests.support.packages import TOP
from tests.support.requirements import skip_without

pytestmark = pytest.mark.spark
ARTIFACT = "org.postgresql:postgresql:42.7.14"
PAGE = (TOP / "docs" / "how-to" / "audit-against-outbox.md").read_text()
PASSWORD = "choose-one"
NOON_MS = 1_782_907_200_000  # 2026-07-01T12:00:00Z
DAY_MS = 86_400_000


def block(language: str) -> str:
    """Return the only block of the page in a language."""
    [text] = re.findall(rf"```{language}\n(.*?)```", PAGE, re.S)
    return str(text)


@pytest.fixture(scope="module")
def driver() -> str:
    with skip_without():
        return str(fetch_jar(ARTIFACT))


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    [port] = free_ports(1)
    with skip_without(), private_server(port) as running:
        yield running


@pytest.fixture(scope="module")
def owner(server: Server) -> Iterator[psycopg.Connection]:
    """Return a connection of the owner of a database with the tables of the page."""
    url = server.new_database()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(block("sql").encode())
        yield connection


@pytest.fixture(scope="module")
def session(spark: Any, driver: str) -> Any:
    spark.sql(f"ADD JAR '{driver}'")
    return spark


@pytest.fixture
def url(owner: psycopg.Connection) -> str:
    info = owner.info
    return f"jdbc:postgresql://127.0.0.1:{info.port}/{info.dbname}?user=audit"


def make(owner: psycopg.Connection, name: str, columns: str, *rows: tuple[object, ...]) -> None:
    """Create a table that the audit can read."""
    owner.execute(f"CREATE TABLE {name} ({columns}); GRANT SELECT ON {name} TO audit".encode())
    for row in rows:
        marks = ", ".join(["%s"] * len(row))
        owner.execute(f"INSERT INTO {name} VALUES ({marks})".encode(), row)


def read(session: Any, location: str, columns: str = "", zone: str = "") -> Any:
    with use_engine_of(session):
        return read_outside(session, OutsideTable.parse(location, columns, zone, PASSWORD))


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("kind", "texts", "zone"),
    [
        (
            "timestamptz",
            ("2026-07-01 12:00Z", "2026-07-01 17:30+05:30", "2026-07-01 05:00 America/Los_Angeles"),
            "",
        ),
        ("timestamp", ("2026-07-01 14:00", "2026-07-01 14:00:00.0004"), "Europe/Berlin"),
        ("text", ("2026-07-01T14:00:00+02:00", str(NOON_MS)), ""),
        ("bigint", (str(NOON_MS),), ""),
        ("numeric", (str(NOON_MS),), ""),
    ],
)
def test_times_of_each_type(
    session: Any, owner: psycopg.Connection, url: str, kind: str, texts: Any, zone: str
) -> None:
    rows = [(f"m{number}", "T", text) for number, text in enumerate([*texts, texts[0], None])]
    make(owner, f"of_{kind}", f"id text, topic text, time {kind}", *rows)
    table = read(session, f"{url}#of_{kind}", zone=zone)
    found = [(row["topic"], row["time_ms"]) for row in table.frame.collect()]
    assert found == [("T", NOON_MS)] * (len(texts) + 1)
    assert (table.skipped, table.first_ms, table.last_ms) == (1, NOON_MS, NOON_MS)
    table.release()


def test_the_rows_are_those_of_one_time(session: Any, owner: psycopg.Connection, url: str) -> None:
    """A producer writes meanwhile: all queries of an audit have the same rows."""
    make(owner, "grows", "id text, topic text, time bigint", ("a", "T", NOON_MS))
    table = read(session, f"{url}#grows")
    owner.execute(b"INSERT INTO grows VALUES ('b', 'T', 1)")
    assert [row["name"] for row in table.frame.collect()] == ["a"]
    table.release()


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("table", "reason"),
    [
        ("missing", 'relation "missing" does not exist'),
        ("secret_table", "permission denied for table secret_table"),
        ("of_order", "no column for time=time, id=id; it has order_no, topic"),
        ("of_null", "1 rows lack a value of id and topic"),
        ("of_infinity", "rows without a valid time in time: 1, for example"),
        ("of_local", "give --zone, or times with an offset"),
        ("(SELECT 1 AS x) AS t", "it has x"),
        ("(SELECT pg_sleep(1)", "syntax error"),
    ],
)
def test_a_table_that_cannot_be_used(
    session: Any, owner: psycopg.Connection, url: str, table: str, reason: str
) -> None:
    tables = {
        "of_order": ("order_no text, topic text", ("a", "T")),
        "of_null": ("id text, topic text, time bigint", (None, "T", NOON_MS)),
        "of_infinity": ("id text, topic text, time timestamptz", ("a", "T", "infinity")),
        "of_local": ("id text, topic text, time timestamp", ("a", "T", "2026-07-01 12:00")),
        "secret_table": ("id text", ("a",)),
    }
    if table in tables:
        make(owner, table, *tables[table])
    if table == "secret_table":
        owner.execute(b"REVOKE SELECT ON secret_table FROM audit")
    with pytest.raises(UsageError, match=re.escape(reason)) as raised:
        read(session, f"{url}#{table}")
    [line] = str(raised.value).splitlines()
    assert line.startswith(f"{url}#{table}: ")


def test_a_server_that_refuses(session: Any, owner: psycopg.Connection, url: str) -> None:
    table = OutsideTable(f"{url}#sent_messages", password="guessed")
    with use_engine_of(session):
        with pytest.raises(UsageError, match='password authentication failed for user "audit"'):
            read_outside(session, table)
        closed = url.replace(str(owner.info.port), str(free_ports(1)[0]))
        with pytest.raises(UsageError, match=r"Connection to 127\.0\.0\.1:\d+ refused"):
            read_outside(session, OutsideTable(f"{closed}#t"))
        with pytest.raises(UsageError, match=r"no JDBC driver.*--conf spark\.jars"):
            read_outside(session, OutsideTable("jdbc:mysql://127.0.0.1/d#t"))


@pytest.mark.parametrize(
    "location",
    [
        "jdbc:postgresql://h/d?user=a&password=s3cret#t",
        "jdbc:postgresql://h/d?PASSWORD=s3cret&user=a#t",
        "jdbc:mysql://a:s3cret@h/d#t",
        "jdbc:sqlserver://h;user=a;pwd=s3cret#t",
    ],
)
def test_a_password_in_the_location_is_refused(location: str) -> None:
    with pytest.raises(UsageError, match="set DUEMQ_SENT_PASSWORD") as raised:
        OutsideTable.parse(location, "", "")
    assert "s3cret" not in str(raised.value) + without_secrets(location)
    assert "s3cret" not in repr(OutsideTable("jdbc:x#t", password="s3cret"))


# -- the page ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Campaign:
    return campaign(tmp_path_factory.mktemp("campaign") / "store", 77)


def fill(owner: psycopg.Connection, made: Campaign) -> None:
    """Write the rows of the producer; their zones, and whether they were sent, differ."""
    with owner.cursor() as cursor:
        for number, row in enumerate(made.sent):
            cursor.execute(f"SET TIME ZONE '{('UTC', 'Asia/Kolkata')[number % 2]}'".encode())
            values = (row["id"], row["topic"], iso(row["time"]))
            cursor.execute(
                b"INSERT INTO outbox (message_id, channel, due_at, sent_at)"
                b" VALUES (%s, %s, %s, now())",
                values,
            )
        cursor.execute(
            b"INSERT INTO outbox (message_id, channel, due_at) VALUES ('not-sent-yet', 'T', now())"
        )


def command_lines() -> str:
    """Return the command lines of all processes."""
    texts = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            texts.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:  # it has ended
            continue
    return "\n".join(texts)


@pytest.mark.extended
def test_the_commands_of_the_page(
    driver: str, owner: psycopg.Connection, made: Campaign, tmp_path: Path
) -> None:
    fill(owner, made)
    fetch, export, *run = block("sh").splitlines()
    assert fetch == f"mvn -q dependency:copy -Dartifact={ARTIFACT} -DoutputDirectory=/opt/jdbc"
    assert export == f"export DUEMQ_SENT_PASSWORD={PASSWORD}"
    events = tmp_path / "events"
    events.mkdir()
    places = {
        "duemq ": f"{sys.executable} -m duemq ",
        "/data/store": str(made.root),
        "/opt/jdbc": str(jar_folder()),
        "db.example:5432/shop": f"127.0.0.1:{owner.info.port}/{owner.info.dbname}",
    }
    command = "\n".join(run)
    for old, new in places.items():
        assert old in command
        command = command.replace(old, new)
    more = " --json --ledger none --spark-log INFO --conf spark.eventLog.enabled=true"
    more += f" --conf spark.eventLog.dir={events}"
    seen, stdout = [], tmp_path / "stdout"
    with (tmp_path / "stderr").open("w") as stderr, stdout.open("w") as to:
        env = environment(DUEMQ_SENT_PASSWORD=PASSWORD)
        process = subprocess.Popen(
            ["bash", "-c", command.strip() + more], stdout=to, stderr=stderr, env=env
        )
        while process.poll() is None:
            seen.append(command_lines())
            try:
                process.wait(0.5)
            except subprocess.TimeoutExpired:
                continue
    result = json.loads(stdout.read_text())
    [proof] = result["outside"]
    expected: dict[str, int] = {}
    for outcome in made.outcomes.values():
        expected[outcome] = expected.get(outcome, 0) + 1
    assert process.returncode == 1
    assert proof["outcomes"] == expected
    assert any("org.apache.spark" in text for text in seen), "Java was seen"
    texts = [path.read_text(errors="replace") for path in events.rglob("*") if path.is_file()]
    texts += [(tmp_path / "stderr").read_text(), stdout.read_text(), *seen]
    assert [text for text in texts if PASSWORD in text] == []


@pytest.mark.extended
def test_many_ids_that_do_not_exist(
    session: Any,
    owner: psycopg.Connection,
    url: str,
    made: Campaign,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    """With --planted=N: N unknown ids, in a thousand topics more than are selected by name."""
    count, topics = int(request.config.getoption("--planted")), 2_000
    make(owner, "unknown", "id text, topic text, time timestamptz")
    owner.execute(
        b"INSERT INTO unknown SELECT 'none-' || n, 'T' || n %% %s, now()"
        b" FROM generate_series(1, %s) AS n",
        (topics, count),
    )
    table = OutsideTable.parse(f"{url}#unknown", "", "", PASSWORD)
    comparison = TableComparison(sent=table)
    request_ = AuditRequest(stores=(str(made.root),), comparison=comparison)
    summary = run_audit(session, request_, FakeClock())
    [proof] = summary.outside
    assert proof.outcomes == {"never_accepted": count}
    assert len(proof.examples) == 3
    assert os.path.isdir(made.root)
