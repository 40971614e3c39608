"""Log of a store whose rows are exported, and the names of brokers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from delayed_delivery.ownership_projection import Ownership
from duemq_common.errors import UsageError
from spark_reconciliation.scan.files import Root
from spark_reconciliation.scan.levels import DEFAULT_LEVELS_MS, stored_levels_ms
from spark_reconciliation.scan.planned_store import must_be_store
from spark_reconciliation.scan.planning import LogPlan, plan_log
from spark_reconciliation.scan.store_state import Progress, read_journal


@dataclass(frozen=True, slots=True)
class ExportedLog:
    """Log of a store at planning time, with what its rows need.

    Attributes:
        broker: Name of the broker, for the rows.
        levels_ms: Delays of levels 1, 2, ...
        progress: Due times of level messages that their queue lacks.
        first: Log offset of the first export; a copy of an older record is the first record of
            its message that the tables have.
    """

    root: Root
    plan: LogPlan
    broker: str
    levels_ms: tuple[int, ...]
    progress: Progress
    first: int

    @classmethod
    def of_store(cls, root: Root, plan: LogPlan, broker: str, first: int) -> ExportedLog:
        """Read the levels and the ownership journal of a store.

        Raises:
            OSError: A file cannot be read.
        """
        levels_ms = next(iter(stored_levels_ms([root.url])), DEFAULT_LEVELS_MS)
        ownership = Ownership()
        for entry in read_journal(root, plan):
            ownership.apply(entry)
        promised = {level - 1: dict(due) for level, due in ownership.promised.items()}
        return cls(root, plan, broker, levels_ms, Progress(promised=promised), first)


def named_stores(stores: Sequence[str], names: Sequence[str]) -> dict[str, str]:
    """Return the store of each broker.

    Args:
        names: Name of the broker of each store; empty: the last part of its path.
    Raises:
        UsageError: Two brokers have the same name, or the numbers differ.
    """
    if names and len(names) != len(stores):
        raise UsageError(f"{len(stores)} stores have {len(names)} brokers: name one for each store")
    given = names or [store.rstrip("/").rpartition("/")[2] for store in stores]
    brokers = dict(zip(given, stores, strict=True))
    if len(brokers) < len(stores) or not all(brokers):
        raise UsageError(
            f"brokers need different names, not {', '.join(given)}: give --broker for each store"
        )
    return brokers


def plan_of_store(store: str, plan: Callable[[Root], LogPlan] = plan_log) -> tuple[Root, LogPlan]:
    """Return the log of a store, by default up to its present end.

    Args:
        plan: Returns the log of a store.
    Raises:
        UsageError: The path is not a store.
        OSError: The directory of the log cannot be read.
    """
    root = Root(store.rstrip("/"))
    must_be_store(root)
    return root, plan(root)


def check_complete(root: Root, plan: LogPlan, first: int, remedy: str) -> None:
    """Check that the end of a log is readable, and that no file after a log offset is missing.

    Args:
        remedy: What continues without missing files; empty: they are accepted.
    Raises:
        UsageError: A part of the log would be taken for all of it.
    """
    for one in plan.findings:
        if one.kind == "unreadable":
            raise UsageError(f"{root.url}/{one.file}: {one.text}. Run it again once it is readable")
        if one.kind == "missing-file" and first < one.base < plan.end and remedy:
            reason = f"{root.url}/{one.file}: {one.text}"
            raise UsageError(f"{reason}. Complete the store, or {remedy} continues without them")
