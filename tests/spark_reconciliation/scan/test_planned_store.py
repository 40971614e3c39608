"""Directories that are stores: also that of a broker without a message."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest

from duemq_common.errors import UsageError
from spark_reconciliation.audit.summary import Summary, summarize
from spark_reconciliation.scan.planned_store import plan_store
from spark_reconciliation.spark.read import audit_stores, count_stores
from tests.support.golden_stores import golden_store
from tests.support.running_broker import running, small


def summaries(engine: Any, store: Path) -> list[Summary]:
    """Return the summaries of both ways to audit a store."""
    brief, unread = count_stores(engine, [str(store)])
    return [
        summarize(*audit_stores(engine, [str(store)])),
        summarize(brief.rest, unread, kept=brief.kept),
    ]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Return the store of a broker that has stopped before its first message."""

    async def start_and_stop() -> None:
        async with running(small(tmp_path)):
            pass

    asyncio.run(start_and_stop())
    return tmp_path / "store"


@pytest.mark.parametrize("missing", [(), ("commitlog", "consumequeue")], ids=["empty", "missing"])
def test_a_store_without_a_message_has_no_finding(
    missing: tuple[str, ...], engine: Any, store: Path
) -> None:
    for name in missing:
        (store / name).rmdir()
    for summary in summaries(engine, store):
        assert (summary.messages, summary.clean) == (0, True)


def test_the_config_files_of_another_program_are_no_store(store: Path) -> None:
    for name in ("delayOffset.json", "consumerOffset.json"):
        (store / "config" / name).unlink()
    with pytest.raises(UsageError, match="is not a store: it has neither commitlog"):
        plan_store(0, str(store))


@pytest.mark.parametrize("name", ["apache-5.3.3-clean"])
def test_a_store_whose_log_and_queues_are_gone_has_a_finding(
    name: str, engine: Any, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    shutil.copytree(golden_store(name), store)
    for folder in ("commitlog", "consumequeue"):
        shutil.rmtree(store / folder)
    for summary in summaries(engine, store):
        assert not summary.clean
