"""Ledger rows of audits, on both databases."""

from __future__ import annotations

from pathlib import Path

import pytest

from duemq_common.ledger.engine import default_url
from duemq_common.ledger.errors import LedgerNewer, LedgerOfAnotherStore, LedgerUnavailable
from duemq_common.ledger.identity import store_id
from duemq_common.ledger.location import LedgerLocation
from duemq_common.ledger.schema import VERSION
from duemq_common.ledger.tables import VERSIONS
from spark_reconciliation.jobs.audit_ledger import (
    AuditLedger,
    AuditRecord,
    location_of,
    new_audit_id,
)
from tests.duemq_common.ledger.conftest import NOW_MS, open_ledger, postgres, url  # noqa: F401

RECORD = AuditRecord(
    audit_id="audit-1",
    started_ms=5,
    ended_ms=9,
    made_by="cron",
    stores=("/s", "s3://ü"),
    exit_code=1,
    complete=False,
    late_limit_ms=2_000,
    late_p50_ms=1,
    late_p99_ms=7,
    late_max_ms=None,
    unread=2,
    why="",
    verdicts={"ok": 1 << 40, "lost": 1},
)


def place(url: str, store_id: str) -> LedgerLocation:  # noqa: F811
    return LedgerLocation(url=url, store_id=store_id, store_path="/s")


def opened(url: str) -> AuditLedger:  # noqa: F811
    return AuditLedger.open(place(url, "s-1"), now_ms=NOW_MS)


def test_audits_round_trip(url: str) -> None:  # noqa: F811
    ledger = opened(url)
    ledger.write([RECORD])
    later = AuditRecord(audit_id="audit-2", started_ms=6, ended_ms=6, exit_code=2, why="no Java\0")
    ledger.write([later])
    found = AuditLedger.open_existing(url).audits()
    assert found[1] == RECORD
    assert (found[0].audit_id, found[0].why, found[0].messages) == ("audit-2", "no Java�", 0)
    assert [record.audit_id for record in ledger.audits(count_max=1)] == ["audit-2"]


def test_writing_an_audit_again_replaces_it(url: str) -> None:  # noqa: F811
    ledger = opened(url)
    ledger.write([RECORD])
    again = AuditRecord(audit_id="audit-1", started_ms=5, ended_ms=10, verdicts={"ok": 3})
    ledger.write([again])
    assert ledger.audits() == [again]


def test_migrations_and_audits_share_one_ledger(url: str) -> None:  # noqa: F811
    opened(url).write([RECORD])
    mine = open_ledger(url, store_id="s-1", store_path="/s")
    assert mine.migrations() == []
    assert opened(url).audits() == [RECORD]


def test_a_newer_ledger_and_that_of_another_store_are_refused(tmp_path: Path) -> None:
    where = f"sqlite:///{tmp_path / 'l.sqlite'}"
    opened(where)
    with pytest.raises(LedgerOfAnotherStore, match="belongs to store s-1"):
        AuditLedger.open(place(where, "s-2"), now_ms=NOW_MS)
    import sqlite3

    with sqlite3.connect(tmp_path / "l.sqlite") as connection:
        connection.execute(f"UPDATE {VERSIONS.name} SET version_num = '9999'")
    connection.close()
    with pytest.raises(LedgerNewer, match=f"schema is 9999; .* knows up to {VERSION}"):
        opened(where)


def test_a_missing_ledger(tmp_path: Path) -> None:
    with pytest.raises(
        LedgerUnavailable, match="The first plan, migration or audit of a store creates it"
    ):
        AuditLedger.open_existing(default_url(tmp_path))


def test_only_our_stores_have_a_default_ledger(tmp_path: Path) -> None:
    apache, ours = tmp_path / "apache", tmp_path / "ours"
    name = store_id(ours / "config")
    mine = LedgerLocation(url=default_url(ours), store_id=name, store_path=str(ours))
    assert location_of([str(ours)]) == mine
    assert location_of([str(apache)]) is None
    assert location_of([str(ours), str(apache)]) is None
    assert location_of(["s3://bucket/store"]) is None
    assert not apache.exists()


def test_a_given_ledger_belongs_to_the_stores_in_any_order(tmp_path: Path) -> None:
    ours = tmp_path / "ours"
    name = store_id(ours / "config")

    def whose(*stores: str) -> str:
        place = location_of(stores, "sqlite:////l")
        assert place is not None
        return place.store_id

    assert whose(str(ours)) == name
    assert whose("/a", "/b") == whose("/b", "/a") != whose("/a")
    assert len(whose("/a", "/b")) <= 64


def test_ids_sort_by_time() -> None:
    ids = [new_audit_id(ms, b"\x12\x34") for ms in (NOW_MS, NOW_MS + 1_000, NOW_MS + 10**9)]
    assert ids == sorted(ids)
    assert ids[0].endswith("-1234")
