"""Output of `duemq quarantine`: messages in quarantine, and the results of sending them again."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence

from duemq.cli.confirmation import confirm
from duemq.cli.messages import body_text, time_text
from duemq.cli.options import Target
from duemq.cli.output import (
    plural,
    print_json,
    print_json_line,
    print_table,
    printable,
)
from duemq.client.admin.quarantine import Quarantined
from duemq_common.errors import UsageError


def plain(item: Quarantined) -> dict[str, object]:
    """Return a message in quarantine as plain data."""
    properties = item.record.properties
    return {
        "broker": item.broker,
        "offset": item.record.queue_offset,
        "stored": time_text(item.record.store_ms),
        "topic": item.topic,
        "reason": item.reason,
        "detail": item.detail,
        "group": properties.get("DUEMQ_GROUP", ""),
        "unique_key": properties.get("UNIQ_KEY", ""),
        "body": None if item.original is None else body_text(item.original.body),
    }


def summary(item: Quarantined) -> str:
    """Return a quarantined message as text: why, for which topic, its body."""
    body = "the record cannot be read" if item.original is None else body_text(item.original.body)
    return f"{item.reason}: {item.detail}  topic {item.topic or 'unknown'}  {body}"


def list_quarantined(topic: str, count: int, target: Target) -> None:
    """Print the messages in quarantine, oldest first."""
    asyncio.run(_list(topic, count, target))


async def _list(topic: str, count: int, target: Target) -> None:
    async with target.admin() as admin:
        items = [item async for item in admin.quarantined() if topic in ("", item.topic)]
    shown = items[:count] if count else items
    if target.as_json:
        print_json([plain(item) for item in shown])
        return
    rows = [
        (
            item.name,
            time_text(item.record.store_ms),
            item.topic or "-",
            printable(f"{item.reason}: {item.detail}"),
            item.record.properties.get("UNIQ_KEY", "-"),
        )
        for item in shown
    ]
    columns = ("offset", "since", "topic", "reason", "unique key")
    title = f"{len(items)} {plural(len(items), 'message')} in quarantine"
    title += f", the first {len(shown)}:" if len(shown) < len(items) else ""
    print_table(title, columns, rows, optional=("unique key", "since"))


def show_quarantined(name: str, target: Target) -> None:
    """Print a message in quarantine: reason, properties and body."""
    for item in asyncio.run(_selected({name}, "", target)):
        shown = plain(item)
        shown["properties"] = {} if item.original is None else dict(item.original.properties)
        if target.as_json:
            print_json_line(shown)
            continue
        rows = [(key.replace("_", " "), _text(value)) for key, value in shown.items()]
        print_table("", ("", ""), [row for row in rows if row[1]])


def _text(value: object) -> str:
    if isinstance(value, dict):
        return "\n".join(f"{key} = {text}" for key, text in value.items())
    return "" if value is None else str(value)


async def _selected(names: Collection[str], from_topic: str, target: Target) -> list[Quarantined]:
    """Return messages in quarantine by name; without names, all.

    Raises:
        UsageError: No message has one of the names.
    """
    async with target.admin() as admin:
        items = [item async for item in admin.quarantined(names) if from_topic in ("", item.topic)]
    missing = set(names) - {name for item in items for name in item.names}
    if missing:
        raise UsageError(f"no message in quarantine is {', '.join(sorted(missing))}")
    return items


def resend_quarantined(
    names: Sequence[str],
    from_topic: str,
    topic: str,
    without: Sequence[str],
    target: Target,
    *,
    dry_run: bool,
    yes: bool,
) -> None:
    """Send messages in quarantine again, each once, and print the result of each.

    Args:
        names: Offsets as listed, or unique ids; none: all.
        topic: Topic to send to; empty: the topic of the message.
        without: Properties that the message loses.
    """
    items = asyncio.run(_selected(names, from_topic, target))
    if items and not (dry_run or yes or names):
        effect = f"{len(items):,} {plural(len(items), 'message')}"
        confirm(f"Send {effect} again", f"quarantine resend sends {effect}")
    asyncio.run(_send_all(items, topic, without, target, dry_run=dry_run))


async def _send_all(
    items: Sequence[Quarantined],
    topic: str,
    without: Sequence[str],
    target: Target,
    *,
    dry_run: bool,
) -> None:
    async with target.admin() as admin:
        for item in items:
            status = await admin.resend_quarantined(
                item, topic=topic, without=without, dry_run=dry_run
            )
            _print_sent(item, topic or item.topic, status, target)


def _print_sent(item: Quarantined, topic: str, status: str, target: Target) -> None:
    if target.as_json:
        print_json_line(plain(item) | {"topic": topic, "status": status})
        return
    print(printable(f"{item.record.queue_offset} to {topic}: {status}  {summary(item)}"))
