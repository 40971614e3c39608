"""Clock steps in both directions: they are reported with their position and are no losses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from message_store.layout import RECORD_HEAD
from spark_reconciliation.audit import clock_steps
from spark_reconciliation.audit.audit_config import AuditConfig
from spark_reconciliation.audit.summary import Summary, summarize
from spark_reconciliation.engine import use_engine_of
from spark_reconciliation.scan.files import Root
from spark_reconciliation.scan.planning import log_segments, plan_log
from spark_reconciliation.scan.record_scan import RecordScan
from spark_reconciliation.spark.read import audit_stores, count_stores
from tests.spark_reconciliation.log_bytes import Log
from tests.support.extended import extended
from tests.support.timer_rig import TimerRig
from tests.support.written_logs import FILE_BYTES, START_MS, LogWriter

HOUR_MS = 3_600_000
LOG_FILE_BYTES = 65_536  # as in `small_config`
STORE_MS_AT = (RECORD_HEAD.fields or {})["store_ms"][1]


def log_of(root: Path, times: list[int]) -> LogWriter:
    """Write a log of 300-byte records with these store times."""
    log = LogWriter(root)
    for ms in times:
        at = log.add(b"x" * 200)
        log.data[at + STORE_MS_AT : at + STORE_MS_AT + 8] = (START_MS + ms).to_bytes(8, "big")
    log.write()
    return log


def steps_of(root: Path, bytes_max: int) -> list[tuple[int, int, int]]:
    """Return (log offset, time before, time at it)."""
    store, found = Root(str(root)), []
    for segment in log_segments(store, plan_log(store), bytes_max=bytes_max):
        scan = RecordScan(segment, clock=True)
        assert scan.open()
        for _ in scan.chunks():
            pass
        assert not scan.findings
        for step in scan.steps:
            assert step.finding.file == f"commitlog/{step.finding.base:020d}"
            at = step.finding.base + step.finding.offset
            found.append((at, step.before_ms - START_MS, step.after_ms - START_MS))
    return found


RISING = list(range(0, 20_000, 100))  # in four files


@pytest.mark.parametrize("bytes_max", [400, 5_000, FILE_BYTES])
@pytest.mark.parametrize(
    ("times", "expected"),
    [
        (RISING, []),
        (RISING[:50] + [ms - HOUR_MS for ms in RISING[50:]], [50]),
        (RISING[:50] + [ms + HOUR_MS for ms in RISING[50:]], []),  # the same as a pause
        (RISING[:50] + [ms - HOUR_MS for ms in RISING[50:90]] + RISING[90:], [50]),
        (
            RISING[:90] + [ms - 5_000 for ms in RISING[90:93]] + RISING[93:],
            [],
        ),  # only a few records
        ([ms - 5_000 * (n // 60) for n, ms in enumerate(RISING)], [60, 120, 180]),
        ([*RISING[:-1], 5], [len(RISING) - 1]),  # no later record contradicts
        ([ms - 9 * (n % 2) for n, ms in enumerate([7] * 90)], []),
    ],
)
def test_steps_have_their_position(
    tmp_path: Path, times: list[int], expected: list[int], bytes_max: int
) -> None:
    log = log_of(tmp_path, times)
    places = [at for at, _ in log.places]
    expected = [(places[n], times[n - 1], times[n]) for n in expected]  # type: ignore[misc]
    assert steps_of(tmp_path, bytes_max) == expected  # type: ignore[comparison-overlap]


def test_steps_at_borders_of_segments_and_files_are_found(tmp_path: Path) -> None:
    for cut in range(len(RISING) - 9, 0, -7):
        root = tmp_path / str(cut)
        times = RISING[:cut] + [ms - HOUR_MS for ms in RISING[cut:]]
        log = log_of(root, times)
        found = steps_of(root, 700)
        assert [at for at, _, _ in found] == [log.places[cut][0]], cut


def test_the_number_of_steps_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock_steps, "STEPS_MAX", 3)
    log_of(tmp_path, [-1_000 * n for n in range(40)])
    assert len(steps_of(tmp_path, FILE_BYTES)) == 3


# -- verdicts of an audit, all in one run of Spark ------------------------------------------------


def rig_at(root: Path) -> TimerRig:
    return TimerRig(root).open()


def set_back(rig: TimerRig, by_ms: int) -> None:
    """Set the clock back, and write enough records to show it."""
    rig.clock.set_ms(rig.clock.now_ms() - by_ms)
    send_messages(rig)


def send_messages(rig: TimerRig) -> None:
    for n in range(5):
        rig.put(
            rig.clock.now_ms() + 10 * HOUR_MS, UNIQ_KEY=f"send_messages-{rig.clock.now_ms()}-{n}"
        )


Expected = tuple[dict[str, int], dict[str, int]]  # by default, and with a trusted clock


def back_with_pending_timers(root: Path) -> Expected:
    """New timers wait in the slot that the timers had reached, which is in the future now."""
    rig = rig_at(root)
    rig.put(rig.clock.now_ms() + 2_000)
    rig.advance(HOUR_MS)
    rig.put(rig.clock.now_ms() + 1_000)
    rig.advance(5_000)
    send_messages(rig)
    set_back(rig, HOUR_MS)
    rig.put(rig.clock.now_ms() + 60_000)  # before the slot that the timers had reached
    rig.advance(1_000)
    rig.close()
    return {"ok": 2, "pending": 10, "late": 1}, {"ok": 2, "pending": 11}


def back_and_lost(root: Path) -> Expected:
    """A message delivered before the step whose record was damaged later is still lost."""
    rig = rig_at(root)
    rig.put(rig.clock.now_ms() + 2_000)
    rig.advance(10_000)
    send_messages(rig)
    set_back(rig, 5_000)
    rig.advance(20_000)
    rig.close()
    log = root / "commitlog" / f"{0:020d}"
    data = bytearray(log.read_bytes())
    (record,) = (r for r in rig_records(root) if r["topic"] == "T")
    data[record["phys_offset"] + 4] ^= 0xFF
    log.write_bytes(bytes(data))
    return {"lost": 1, "pending": 10}, {"lost": 1, "pending": 10}


def back_between_take_and_append(root: Path) -> Expected:
    """The message was due by the earlier clock, and is stored with the time of the new one."""
    rig = rig_at(root)
    due_ms = rig.clock.now_ms() + 3_000
    rig.put(due_ms)
    rig.clock.set_ms(due_ms)
    send_messages(rig)
    rig.clock.set_ms(due_ms - 2_000)
    while rig.timers.turn(due_ms):  # decided before the step
        pass
    send_messages(rig)
    rig.close()
    return {"early": 1, "pending": 10}, {"ok": 1, "pending": 10}


def forward(root: Path) -> Expected:
    """Messages that become due in a forward step are hours late by the new clock."""
    rig = rig_at(root)
    rig.put(rig.clock.now_ms() + 60_000)
    rig.put(rig.clock.now_ms() + 10 * HOUR_MS)
    rig.clock.set_ms(rig.clock.now_ms() + HOUR_MS)
    rig.work()
    rig.close()
    return {"late": 1, "pending": 1}, {"late": 1, "pending": 1}


def burst(root: Path, *, ahead: bool) -> dict[str, int]:
    """Thirty deliveries with changed times, before their due time.

    Args:
        ahead: also change the time of one earlier record by an hour.
    """
    rig = rig_at(root)
    send_messages(rig)
    due_ms = rig.clock.now_ms() + 3_000
    for n in range(30):
        rig.put(due_ms, UNIQ_KEY=f"burst-{n}")
    rig.advance(2_900)
    send_messages(rig)
    rig.advance(100)
    send_messages(rig)
    rig.close()
    sent = sorted(r["phys_offset"] for r in rig_records(root) if r["topic"] == "T")
    assert len(sent) == 30
    log = Log(root, LOG_FILE_BYTES)
    for at in sent:
        log.head(at)["store_ms"] -= 600
    if ahead:
        first = min(r["phys_offset"] for r in rig_records(root) if r["phys_offset"] > 0)
        log.head(first)["store_ms"] += HOUR_MS
    log.close()
    return {"early": 30, "pending": 15}


def early_in_a_burst(root: Path) -> Expected:
    """Only deliveries were changed; no clock was set back."""
    found = burst(root, ahead=False)
    return found, found


def one_record_ahead(root: Path) -> Expected:
    """One record is not enough for a clock step."""
    found = burst(root, ahead=True)
    return found, found


CASES = {
    made.__name__: made
    for made in (
        back_with_pending_timers,
        back_and_lost,
        back_between_take_and_append,
        forward,
        early_in_a_burst,
        one_record_ahead,
    )
}
STEPPED = set(CASES) - {"forward"}
EXCUSED = {"back_with_pending_timers", "back_between_take_and_append"}


def rig_records(root: Path) -> list[dict[str, Any]]:
    from tests.support.read_tables import read_rows

    return read_rows(root, "messages", "topic", "phys_offset")


@pytest.fixture(scope="module")
def stepped(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Expected]:
    top = tmp_path_factory.mktemp("clocks")
    return {str(top / name): make(top / name) for name, make in CASES.items()}


@pytest.mark.finding("C4")
@pytest.mark.parametrize("trust", [False, extended(True)])
def test_a_clock_step_needs_many_records(
    engine: Any, stepped: dict[str, Expected], trust: bool
) -> None:
    config = AuditConfig(trust_clock=trust)
    verdicts, unread = audit_stores(engine, list(stepped), config)
    verdicts, unread = verdicts.persist(), unread.persist()
    found: dict[str, dict[str, int]] = {store: {} for store in stepped}
    for row in verdicts.groupBy("store", "verdict").count().collect():
        found[row["store"]][row["verdict"]] = row["count"]
    assert found == {store: expected[trust] for store, expected in stepped.items()}
    for store in stepped:
        mine, name = f"store = '{store}'", Path(store).name
        summary = summarize(verdicts.where(mine), unread.where(mine))
        assert bool(summary.clock) == (name in STEPPED), name
        assert summary.complete == (name != "back_and_lost")
        assert summary.excused == int(name in EXCUSED), name
        assert summary.clean == (trust and name in EXCUSED)
        assert all("set back by" in row["note"] for row in summary.clock)
        shown = [row for row in summary.clock if "explains no finding" not in row["note"]]
        assert bool(shown) == (name in STEPPED - {"early_in_a_burst", "one_record_ahead"}), name
    for row in verdicts.collect():
        assert row["verdict"] != "pending" or row["late_ms"] is None


@pytest.mark.extended
@pytest.mark.spark
@pytest.mark.finding("C4")
def test_a_brief_audit_reports_the_same_clock_steps(
    spark: Any, stepped: dict[str, Expected]
) -> None:
    with use_engine_of(spark):  # the module's other engine may still be in use
        for place, name in enumerate(CASES):
            store = list(stepped)[place]
            if name in {"back_with_pending_timers", "early_in_a_burst"}:
                brief, unread = count_stores(spark, [store])
                summary = summarize(brief.rest, unread, kept=brief.kept)
                assert summary.verdicts == stepped[store][0]


def test_a_clean_audit_with_a_step_is_clean_and_reports_it() -> None:
    from spark_reconciliation.report.page import html_report

    none = {"p50": None, "p99": None, "max": None}
    place = {
        "store": "/s",
        "phys_offset": 77,
        "file": "commitlog/0",
        "offset": 77,
        "note": "the clock was set back by 5 ms",
    }
    summary = Summary({"ok": 1}, none, clock=[place])
    assert (summary.clean, summary.complete) == (True, True)
    page = html_report(summary, stores=["/s"], at_ms=0)
    assert "Every promise was kept" in page
    assert "The clock was set back" in page
    assert summary.to_json()["clock"] == [place]
