"""`duemq migrate history`: past migrations as table, JSON or HTML page."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from duemq.cli.messages import time_text
from duemq.cli.output import console, print_json, print_table
from duemq_common.clock import SystemClock
from duemq_common.errors import UsageError

if TYPE_CHECKING:
    from duemq_migration.ledger.reader import MigrationLedger

COLUMNS = ("run", "started (UTC)", "ended (UTC)", "by", "mode", "plan")


def history(*, store: Path | None, url: str, run_id: str, html: Path | None, as_json: bool) -> None:
    """Print the migrations of a ledger, without a broker.

    Args:
        store: Store directory whose ledger is read; None: `url` is used.
        run_id: Run to print; empty: all runs, or the newest with `html`.
    """
    from duemq_common.ledger.engine import default_url
    from duemq_migration.ledger.reader import MigrationLedger

    if (store is None) == (not url):
        raise UsageError("give either the store's directory or --ledger URL")
    ledger = MigrationLedger.open_existing(url or default_url(store or ""))
    try:
        if html is not None:
            _write_page(ledger, run_id, html, str(store or ledger.where))
        elif run_id:
            print_json(_plain(ledger.run(run_id)))
        elif as_json:
            print_json([asdict(item) for item in ledger.migrations()])
        else:
            rows = [_row(m) for m in ledger.migrations()]
            print_table("migrations", COLUMNS, rows, nothing="no migrations yet")
    finally:
        ledger.close()


def _row(item: Any) -> tuple[Any, ...]:
    ended = "" if item.ended_ms is None else time_text(item.ended_ms)
    started = time_text(item.started_ms)
    return item.migration_id, started, ended, item.started_by, item.mode, item.plan_id


def _write_page(ledger: MigrationLedger, run_id: str, html: Path, store: str) -> None:
    from duemq_migration.ledger.page import history_page

    migrations = ledger.migrations()
    if not run_id and not migrations:
        raise UsageError("there is no migration yet: run `duemq migrate start` first")
    run = ledger.run(run_id or migrations[0].migration_id)
    html.write_text(history_page(run, store=store, made_ms=SystemClock().now_ms()))
    console(stderr=True).print(f"wrote {html}: migration {run.migration.migration_id}")


def _plain(run: object) -> dict[str, object]:
    import msgspec

    plain: dict[str, object] = msgspec.to_builtins(run)
    return plain
