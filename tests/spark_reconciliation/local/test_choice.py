"""Choice of the engine by the bytes of the logs."""

from __future__ import annotations

from pathlib import Path

import pytest

from duemq_common.errors import UsageError
from spark_reconciliation.local import choice
from spark_reconciliation.local.choice import choose_engine, log_bytes
from tests.support.golden_stores import golden_store
from tests.support.written_logs import LogWriter


@pytest.fixture
def store(tmp_path: Path) -> str:
    log = LogWriter(tmp_path / "store")
    log.add(b"x" * 300)
    return str(log.write())


def test_the_unused_end_of_a_file_does_not_count(store: str) -> None:
    with next(Path(store, "commitlog").iterdir()).open("ab") as file:
        file.truncate(1 << 30)
    assert 300 < log_bytes([store]) < 1_000


def test_auto_takes_spark_for_large_stores_and_requests_of_spark(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert choose_engine("auto", [store], spark_requested=False) == "local"
    assert choose_engine("auto", [store], spark_requested=True) == "spark"
    assert choose_engine("spark", [store], spark_requested=False) == "spark"
    monkeypatch.setattr(choice, "LOCAL_BYTES_MAX", 100)
    assert choose_engine("auto", [store], spark_requested=False) == "spark"
    with pytest.raises(UsageError, match="omit --engine local, to use Spark"):
        choose_engine("local", [store], spark_requested=False)
    for engine in ("auto", "local"):
        assert choose_engine(engine, [store], spark_requested=False, brief=True) == "local"


def test_local_refuses_settings_of_spark(store: str) -> None:
    with pytest.raises(UsageError, match="need Spark: omit --engine local"):
        choose_engine("local", [store], spark_requested=True)


def test_without_duckdb_spark_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "find_spec", lambda name: None)
    store = str(golden_store("apache-5.3.3-clean"))
    assert choose_engine("auto", [store], spark_requested=False) == "spark"
    with pytest.raises(UsageError, match="duckdb"):
        choose_engine("local", [store], spark_requested=False)
