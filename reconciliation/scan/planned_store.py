"""A store at planning time: its log, and the positions of levels, timers and queues."""

from __future__ import annotations

from dataclasses import dataclass, replace

from message_store.errors import UsageError
from reconciliation.audit.level_times import read_delays
from reconciliation.audit.reachable import CHECKPOINT_FILE, read_reach
from reconciliation.scan.files import Root
from reconciliation.scan.planning import MARK_FILE, Finding, LogPlan, plan_log, row_of_files
from reconciliation.scan.store_state import Standing, read_standing


@dataclass(frozen=True, slots=True)
class Planned:
    """A store as it was at one moment.

    Attributes:
        unread: files that say how far it has come and could not be read.
    """

    root: Root
    plan: LogPlan
    standing: Standing
    unread: tuple[Finding, ...]


def plan_store(number: int, path: str, *, standing: bool = True) -> Planned:
    """Look at a store: first at how far it has come, then for its log's end.

    So a message that it went by was delivered before that end. Without `standing` how far it has
    come is not looked at.

    Raises:
        UsageError: There is no store. OSError: The directory of its log cannot be read.
    """
    root = Root(path.rstrip("/"))
    files, _ = row_of_files(root.url, root.files("commitlog"))
    if not files and not root.folders("consumequeue"):
        raise UsageError(f"{path} is no store: it has neither commitlog nor consumequeue")
    told, unread = Standing(number), list[Finding]()
    if standing and files:
        end = int(files[-1].name) + files[-1].size
        told, unread = read_standing(
            number, root, LogPlan(tuple(files), int(files[0].name), end, ())
        )
    if standing and files:
        whole = LogPlan(tuple(files), int(files[0].name), end, ())
        told, more = _beside(told, root, whole)
        unread += more
    plan = plan_log(root.url, root)
    return Planned(root, plan, replace(told, log_min=plan.min), tuple(unread))


def _beside(standing: Standing, root: Root, plan: LogPlan) -> tuple[Standing, list[Finding]]:
    """Return a standing with what the queues must have, and what could not be read."""
    findings: list[Finding] = []
    try:
        standing = replace(standing, reach=read_reach(root))
    except OSError as error:
        path = MARK_FILE if "config" in str(error.filename) else CHECKPOINT_FILE
        text = f"it cannot be read: {error}"
        findings.append(Finding(root.url, path, 0, 0, "unreadable", text))
    try:
        return replace(standing, delays=read_delays(root, plan)), findings
    except OSError:  # `findings` reports queues and log files
        return standing, findings
