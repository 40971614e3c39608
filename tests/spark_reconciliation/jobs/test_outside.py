"""An audit compared with the tables of producers and consumers."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from pyarrow import parquet

from duemq_common.clock import Clock, FakeClock
from duemq_common.errors import UsageError
from message_store.log.batch import PutBatch
from spark_reconciliation.audit.summary import Summary
from spark_reconciliation.engine import use_engine_of
from spark_reconciliation.jobs.outside import ProofSummary, TableComparison
from spark_reconciliation.jobs.run import AuditRequest, check_request, run_audit
from spark_reconciliation.local.frame import LocalSession
from spark_reconciliation.spark.master import parse_settings
from spark_reconciliation.spark.outside_tables import OutsideTable, read_outside
from spark_reconciliation.spark.session import spark_defaults
from tests.spark_reconciliation.conftest import IN_TEST_ALL, session_of_each
from tests.spark_reconciliation.conftest import on_spark as on_spark
from tests.support.commands import duemq
from tests.support.extended import extended
from tests.support.migration_rig import MigrationRig
from tests.support.stores import add_message

engine = session_of_each(IN_TEST_ALL, "local")
MESSAGES, HOUR_MS = 120, 3_600_000
LEVEL, LEVEL_MS = 4, 60_000
Row = dict[str, Any]


@dataclass
class Campaign:
    """A store, and the rows that its producer and its consumer wrote.

    Attributes:
        sent, received: Rows with id, key, topic, time in ms.
        outcomes, consumed: Expected outcome of each topic and id.
    """

    root: Path
    sent: list[Row] = field(default_factory=list)
    received: list[Row] = field(default_factory=list)
    outcomes: dict[tuple[str, str], str] = field(default_factory=dict)
    consumed: dict[tuple[str, str], str] = field(default_factory=dict)


FAULTS = (
    "ok",
    "pending",
    "never_accepted",
    "accepted_without_delay",
    "accepted_twice",
    "accepted_with_other_time",
    "unknown_to_producer",
)
RECEIPTS = ("consumed", "not_consumed", "consumed_twice", "consumed_early")


def campaign(root: Path, seed: int) -> Campaign:
    """Send messages with every fault of a producer, deliver, and consume with every fault."""
    random, made = Random(seed), Campaign(root)
    rig = MigrationRig(root, FakeClock()).open()
    start_ms, batch = rig.clock.now_ms(), PutBatch(2 * MESSAGES)
    delivered: list[tuple[Row, int]] = []
    for number in range(MESSAGES):
        fault = FAULTS[number % len(FAULTS)]
        is_level = random.random() < 0.4 and fault != "pending"
        late_ms = HOUR_MS if fault == "pending" else random.randrange(5_000, 40_000)
        due_ms = start_ms + (LEVEL_MS if is_level else late_ms)
        row = {"id": f"U{number:04}", "key": f"k{number}", "topic": random.choice("TU")}
        text = {"DELAY": str(LEVEL)} if is_level else {"TIMER_DELIVER_MS": str(due_ms)}
        names = {"UNIQ_KEY": row["id"], "KEYS": f"{row['key']} extra{number}", "WAIT": "true"}
        copies = {"never_accepted": 0, "accepted_twice": 2}.get(fault, 1)
        delay = {} if fault == "accepted_without_delay" else text
        for _ in range(copies):
            add_message(rig.store, batch, row["topic"], properties=names | delay)
        if fault != "unknown_to_producer":
            other_ms = 60_000 if fault == "accepted_with_other_time" else 0
            rows = 1 + random.randrange(2)  # a retry is written twice
            made.sent += [row | {"time": due_ms + other_ms}] * rows
        made.outcomes[row["topic"], row["id"]] = fault
        if copies and fault not in ("accepted_without_delay", "pending"):
            delivered += [(row, due_ms)] * copies
    rig.put(batch)
    rig.advance(10 * 60_000)
    _consume(made, delivered, random)
    rig.close()
    return made


def _consume(made: Campaign, delivered: list[tuple[Row, int]], random: Random) -> None:
    """Write the consumer's rows."""
    copies: dict[str, int] = defaultdict(int)
    for row, _ in delivered:
        copies[row["id"]] += 1
    for number, (row, due_ms) in enumerate(
        {row["id"]: (row, ms) for row, ms in delivered}.values()
    ):
        outcome = RECEIPTS[number % len(RECEIPTS)]
        change = {"not_consumed": -1, "consumed_twice": 1}.get(outcome, 0)
        at_ms = due_ms + random.randrange(100, 900)
        at_ms = due_ms - 1 if outcome == "consumed_early" else at_ms
        made.received += [row | {"time": at_ms}] * (copies[row["id"]] + change)
        made.consumed[row["topic"], row["id"]] = outcome
    newest_ms = max(row["time"] for row in made.received)
    made.received.append({"id": "V1", "key": "v1", "topic": "T", "time": newest_ms + HOUR_MS})
    made.consumed["T", "V1"] = "unknown_to_broker"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Campaign:
    return campaign(tmp_path_factory.mktemp("campaign") / "store", 34)


def write_table(path: Path, rows: list[Row], time: Any = lambda ms: ms) -> str:
    """Write a table in the format of the path's suffix; return its path."""
    rows = [row | {"time": time(row["time"])} for row in rows]
    if path.suffix == ".csv":
        lines = [",".join(str(row[name]) for name in row) for row in rows]
        path.write_text("\n".join([",".join(rows[0]), *lines]))
    elif path.suffix == ".jsonl":
        path.write_text("\n".join(json.dumps(row) for row in rows))
    else:
        parquet.write_table(pa.Table.from_pylist(rows), path)
    return str(path)


def iso(ms: int) -> str:
    """Return a time as ISO 8601 in UTC."""
    return datetime.fromtimestamp(ms / 1_000, UTC).isoformat(timespec="milliseconds")


def local(ms: int) -> str:
    """Return a time of Berlin without its offset."""
    time = datetime.fromtimestamp(ms / 1_000, ZoneInfo("Europe/Berlin"))
    return time.replace(tzinfo=None).isoformat(timespec="milliseconds")


@pytest.mark.parametrize(
    ("name", "time", "columns", "zone"),
    [
        ("t.csv", iso, "id=id,time=time", ""),
        extended("t.jsonl", local, "key=key", "Europe/Berlin"),
        extended("t.parquet", lambda ms: datetime.fromtimestamp(ms / 1_000, UTC), "", ""),
    ],
)
def test_each_message_has_the_outcome_that_was_planted(
    engine: Any, made: Campaign, tmp_path: Path, name: str, time: Any, columns: str, zone: str
) -> None:
    sent = write_table(tmp_path / f"sent-{name}", made.sent, time)
    received = write_table(tmp_path / f"received-{name}", made.received, time)
    request = AuditRequest(
        stores=(str(made.root),),
        out=str(tmp_path / "out"),
        comparison=TableComparison(
            sent=OutsideTable.parse(sent, columns, zone),
            received=OutsideTable.parse(received, columns, zone),
            tolerance_ms=1_000,
        ),
    )
    summary = run_audit(engine, request, FakeClock(FakeClock().now_ms() + HOUR_MS))
    by_key = "key" in columns
    for table, expected in (("sent", made.outcomes), ("received", made.consumed)):
        rows = parquet.read_table(f"{tmp_path}/out-{table}").to_pylist()
        outcomes = {(row["topic"], row["name"]): row["outcome"] for row in rows}
        if by_key:  # messages that no table names have two keys each
            expected = {(topic, key_of(name)): text for (topic, name), text in expected.items()}
            outcomes = {pair: text for pair, text in outcomes.items() if "extra" not in pair[1]}
        assert outcomes == expected
    producers, consumers = summary.outside
    assert not summary.clean
    assert producers.findings > 0 < consumers.findings
    assert {row["outcome"] for row in consumers.examples} == {*RECEIPTS[1:], "unknown_to_broker"}
    assert consumers.lateness_ms["max"] is not None


def key_of(name: str) -> str:
    """Return the key of an id."""
    return f"k{int(name[1:])}" if name.startswith("U") else name.lower()


@pytest.mark.parametrize("engine", [IN_TEST_ALL, "local"], indirect=True)
def test_a_message_stored_after_the_table_was_read_is_not_unknown(
    engine: Any, made: Campaign, tmp_path: Path
) -> None:
    """The producer's table is older than the store, in which no message is from before."""
    sent = OutsideTable(write_table(tmp_path / "sent.jsonl", made.sent))
    request = AuditRequest(stores=(str(made.root),), comparison=TableComparison(sent=sent))
    [proof] = run_audit(engine, request, FakeClock()).outside
    expected = Counter(made.outcomes.values())
    del expected["unknown_to_producer"]
    assert proof.outcomes == expected


def test_an_audit_is_clean_if_the_names_agree_with_the_tables() -> None:
    def audited(**outcomes: int) -> Summary:
        return Summary({"ok": 1}, {}, outside=(ProofSummary("sent", outcomes, skipped=0),))

    assert audited(ok=1, pending=1).clean
    assert not audited(ok=1, never_accepted=1).clean


# -- tables that cannot be used -----------------------------------------------------------------


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("text", "columns", "reason"),
    [
        ("id,topic\nA,T", "", "no column for time=time; it has id, topic"),
        ("order,topic,time\nA,T,1", "", "no column for id=id"),
        ("id,topic,time\nA,T,1700000000", "", "end in 1973: give ms since the epoch"),
        ("id,topic,time\nA,T,2026-01-01T00:00:00", "", "give --zone"),
        (
            "id,topic,time\nA,T,2026-01-01T00:00:00+99:00",
            "",
            "rows without a valid time in time: 1",
        ),
        ("id,topic,time\nA,T,infinity", "", "rows without a valid time in time: 1, for example"),
        (
            "id,topic,time\nA,T,soon\nB,T,2026-01-01T00:00:00Z",
            "",
            "rows without a valid time in time: 1, for example",
        ),
        ("id,topic,time\n,T,2026-01-01T00:00:00Z", "", "1 rows lack a value of id and topic"),
        ("id,topic,time\nA,,2026-01-01T00:00:00Z", "", "1 rows lack a value"),
        ("id,topic,time\n", "", "no row with a time: a comparison would find nothing"),
        ("id,topic,time\nA,T,\n", "", "no row with a time: a comparison would find nothing"),
        ("id,topic,time\nA,T,99999999999999999", "", "give ISO 8601 or ms since the epoch"),
    ],
)
def test_an_unusable_table_is_named_with_its_rows(
    engine: Any, tmp_path: Path, text: str, columns: str, reason: str
) -> None:
    path = tmp_path / "t.csv"
    path.write_text(text)
    with pytest.raises(UsageError, match=reason) as raised:
        read_outside(engine, OutsideTable.parse(str(path), columns, ""))
    assert str(path) in str(raised.value)


def test_a_file_without_lines_has_no_rows(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text("")
    session = LocalSession()
    with use_engine_of(session), pytest.raises(UsageError, match="no row with a time"):
        read_outside(session, OutsideTable(str(tmp_path / "t.jsonl")))
    session.stop()


def test_other_columns_may_have_any_names_and_types(engine: Any, tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    columns = {
        "order.id": ["A"],
        "a`b": ["T"],
        'due "at"': [1_767_218_400_000],
        "pairs": pa.array([[(1, 2.0)]], pa.map_(pa.int8(), pa.float64())),
    }
    if isinstance(engine, LocalSession):  # Spark reads no file with such a column
        columns["half"] = pa.array([1.0]).cast(pa.float16())
    parquet.write_table(pa.table(columns), path)
    given = 'id=order.id,topic=a`b,time=due "at"'
    [row] = read_outside(engine, OutsideTable.parse(str(path), given, "")).frame.collect()
    assert (row["name"], row["topic"], row["time_ms"]) == ("A", "T", 1_767_218_400_000)


def test_rows_without_a_time_are_skipped_and_counted(engine: Any, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("id,topic,time\nA,T,\nB,T,2026-01-01T00:00:00+02:00\n")
    rows = read_outside(engine, OutsideTable(str(path)))
    [row] = rows.frame.collect()
    assert (rows.skipped, row["name"]) == (1, "B")
    assert row["time_ms"] == 1_767_218_400_000


@pytest.mark.spark
def test_a_table_of_a_database_is_read_with_the_given_zone(spark: Any, tmp_path: Path) -> None:
    """Derby's driver is part of Spark. A time in a column without a zone is local."""
    url = f"jdbc:derby:{tmp_path / 'db'}"
    time = "TIMESTAMP_NTZ'2026-07-01 12:00:00'"
    frame = spark.sql(f"SELECT 'A' AS id, 'T' AS topic, {time} AS due_at")
    frame.write.jdbc(f"{url};create=true", "outbox")
    with use_engine_of(spark):  # the file's other tests use the local engine
        with pytest.raises(UsageError, match="give --zone"):
            read_outside(spark, OutsideTable.parse(f"{url}#outbox", "time=due_at", ""))
        table = OutsideTable.parse(f"{url}#outbox", "time=due_at", "Europe/Berlin")
        [row] = read_outside(spark, table).frame.collect()
        assert iso(row["time_ms"]) == "2026-07-01T10:00:00.000+00:00"
        query = f"{url}#(SELECT outbox.*, '#' AS sign FROM outbox) AS t"
        table = OutsideTable.parse(query, "time=due_at", "Europe/Berlin")
        assert read_outside(spark, table).frame.count() == 1
        with pytest.raises(UsageError, match="names no table"):
            read_outside(spark, OutsideTable(url))


def test_settings_of_the_user_replace_those_of_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "spark-defaults.conf").write_text(
        "# comment\nspark.ui.enabled true\nspark.local.dir=/data/tmp\n\nspark.empty\n"
    )
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    assert spark_defaults() == {"spark.ui.enabled": "true", "spark.local.dir": "/data/tmp"}
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path / "absent"))
    assert spark_defaults() == {}
    assert parse_settings(["spark.a=b=c"]) == {"spark.a": "b=c"}
    for text in ("spark.a", "a=b", "spark.sql.session.timeZone=Asia/Tokyo"):
        with pytest.raises(UsageError, match="--conf"):
            parse_settings([text])


@pytest.mark.parametrize(
    ("columns", "zone", "reason"),
    [
        ("order=x", "", "give FIELD=COLUMN"),
        ("id=a,key=b", "", "give either id or key"),
        ("", "Mars/Base", "there is no time zone Mars/Base"),
    ],
)
def test_wrong_options_are_refused(columns: str, zone: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        OutsideTable.parse("t.csv", columns, zone)


def test_outputs_of_comparisons_are_checked_before_the_audit(
    made: Campaign, tmp_path: Path
) -> None:
    (tmp_path / "out-sent").mkdir()
    sent = TableComparison(sent=OutsideTable("t.csv"))
    request = AuditRequest(stores=(str(made.root),), out=f"{tmp_path / 'out'}/", comparison=sent)
    with pytest.raises(UsageError, match=r"cannot be used, .*/out-sent exists: name a new dir"):
        check_request(request)


def test_errors_do_not_show_passwords() -> None:
    table = OutsideTable("jdbc:postgresql://db/app?user=a&password=s3cret#outbox")
    assert "s3cret" not in table.shown


@pytest.mark.spark
@pytest.mark.usefixtures("on_spark")
def test_the_command_requests_a_comparison_and_prints_it(
    made: Campaign, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = write_table(tmp_path / "sent.jsonl", made.sent)
    proof = ProofSummary("sent", {"ok": 2, "never_accepted": 1}, skipped=0)
    requests: list[AuditRequest] = []

    def audited(spark: Any, request: AuditRequest, clock: Clock) -> Summary:
        requests.append(request)
        return Summary({"ok": 2}, {}, outside=(proof,))

    monkeypatch.setattr("spark_reconciliation.jobs.run.run_audit", audited)
    words = ("reconcile", "run", str(made.root), "--sent", sent, "--tolerance", "7")
    shown, as_json = (duemq(*words, "--ledger", "none", *more) for more in ((), ("--json",)))
    for request in requests:
        assert request.comparison == TableComparison(sent=OutsideTable(sent), tolerance_ms=7)
    assert len(requests) == 2
    assert (shown.returncode, as_json.returncode) == (1, 1), shown.stderr
    assert re.search("never_accepted +1", shown.stdout)
    assert "1 names differ from the tables (0 of 2 messages have a finding)." in shown.stdout
    [outside] = json.loads(as_json.stdout)["outside"]
    assert outside["outcomes"] == proof.outcomes
