"""Messages in quarantine and dead letters: selected, and sent again with the result of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from duemq.cli.admin_options import UndeliveredOptions
from duemq.cli.confirmation import confirm
from duemq.cli.exits import Exit
from duemq.cli.options import Target
from duemq.cli.output import is_live, plural, print_json, print_table, progress_bars
from duemq.cli.times import parse_time
from duemq.client.admin import Admin
from duemq.client.admin.messages import TIME_MS_MAX
from duemq.client.admin.resends import (
    ResendOptions,
    ResendStatus,
    Resent,
    UndeliveredMessage,
    UndeliveredSearch,
)
from duemq_common.clock import SystemClock
from duemq_common.errors import UsageError

COLUMNS = ("offset", "topic", "result", "unique id", "remark")
NOTHING = "no messages selected: give --id, --from-topic, --since, --until or --all"
FAULTS = {ResendStatus.NO_TOPIC, ResendStatus.UNREADABLE}
REFUSALS = {ResendStatus.REFUSED, ResendStatus.NO_RESPONSE}


def search_of(
    options: UndeliveredOptions, *, letters_of: str = "", group: str = "", everything: bool = True
) -> UndeliveredSearch:
    """Return the search of options.

    Args:
        letters_of: Group whose dead letters are searched; empty: the quarantine.
        everything: Whether a search without options is for all messages.
    Raises:
        UsageError: The options select nothing.
    """
    now_ms = SystemClock().now_ms()
    search = UndeliveredSearch(
        letters_of=letters_of,
        names=frozenset(options.names or ()),
        topic=options.from_topic,
        group=group,
        from_ms=parse_time(options.since, now_ms) if options.since else 0,
        until_ms=parse_time(options.until, now_ms) if options.until else TIME_MS_MAX,
    )
    if not everything and search == UndeliveredSearch(letters_of=letters_of):
        raise UsageError(NOTHING)
    return search


async def selected(
    admin: Admin, search: UndeliveredSearch, count: int = 0
) -> list[UndeliveredMessage]:
    """Return the messages of a search.

    Args:
        count: Maximum number; 0: all.
    Raises:
        UsageError: A name of the search is not one of a message.
    """
    items: list[UndeliveredMessage] = []
    async for _, _, page in admin.undelivered(search):
        items += page.items
        if 0 < count <= len(items):
            return items[:count]
    check_names(search, search.names.difference(*(item.names for item in items)))
    return items


def check_names(search: UndeliveredSearch, missing: Collection[str]) -> None:
    """Check that no name is missing.

    Raises:
        UsageError: There is no message with the name.
    """
    if missing:
        text = "no message in quarantine is"
        if search.letters_of:
            text = f"group {search.letters_of} has no dead letter"
        raise UsageError(f"{text} {', '.join(sorted(missing))}")


def resend_messages(
    search: UndeliveredSearch,
    options: ResendOptions,
    target: Target,
    *,
    dry_run: bool,
    yes: bool,
) -> None:
    """Send the messages of a search again after a confirmation, and print the result of each.

    Exit code 1: some cannot be sent; 4: some were refused, or it is not known whether they were
    stored.
    """

    async def resend(admin: Admin) -> list[dict[str, str]]:
        effects = await _run(admin, search, options, target, dry_run=True)
        total = sum(row["result"] == ResendStatus.WOULD_SEND for row in effects)
        if dry_run or not total:
            return effects
        if not (yes or search.names):
            effect = f"{total:,} {plural(total, 'message')}"
            confirm(lambda: f"Send {effect} again", f"the command sends {effect}")
        return await _run(admin, search, options, target, len(effects))

    rows = target.ask(resend)
    counts = Counter(row["result"] for row in rows)
    if target.as_json:
        print_json({"dry_run": dry_run, "counts": counts, "results": rows})
    else:
        title = ", ".join(f"{count:,} {status}" for status, count in sorted(counts.items()))
        cells = [tuple(row.values()) for row in rows]
        print_table(title or "no messages", COLUMNS, cells, optional=("unique id",))
    if counts.keys() & REFUSALS:
        raise SystemExit(int(Exit.REFUSED))
    if counts.keys() & FAULTS:
        raise SystemExit(int(Exit.FOUND_FAULT))


async def _run(
    admin: Admin,
    search: UndeliveredSearch,
    options: ResendOptions,
    target: Target,
    total: int = 0,
    *,
    dry_run: bool = False,
) -> list[dict[str, str]]:
    """Return the results as plain data, and draw the progress."""
    rows: list[dict[str, str]] = []
    missing = set(search.names)
    with progress_bars(shown=is_live() and not target.as_json) as show:
        async for _, _, page in admin.undelivered(search):
            results = await admin.resend(page.items, options, dry_run=dry_run)
            rows += map(plain_result, results)
            missing.difference_update(*(item.names for item in page.items))
            show("checked" if dry_run else "sent", len(rows), total or len(rows))
    check_names(search, missing)
    return rows


def plain_result(result: Resent) -> dict[str, str]:
    """Return the result of one message as plain data."""
    return {
        "offset": result.item.name,
        "topic": result.topic,
        "result": result.status.value,
        "unique_id": result.item.unique_id,
        "remark": result.remark,
    }
