"""Output of `duemq quarantine list` and `show`."""

from __future__ import annotations

from collections.abc import Iterable

from duemq.cli.messages import body_text, time_text
from duemq.cli.options import Target
from duemq.cli.output import (
    plural,
    print_json,
    print_json_line,
    print_table,
    printable,
)
from duemq.cli.resend import selected
from duemq.client.admin.quarantine import Quarantined
from duemq.client.admin.resends import UndeliveredMessage, UndeliveredSearch


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
    search = UndeliveredSearch(topic=topic)
    items = quarantined_of(target.ask(lambda admin: selected(admin, search)))
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
    search = UndeliveredSearch(names=frozenset({name}))
    for item in quarantined_of(target.ask(lambda admin: selected(admin, search))):
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


def quarantined_of(items: Iterable[UndeliveredMessage]) -> list[Quarantined]:
    """Return the messages in quarantine."""
    return [item for item in items if isinstance(item, Quarantined)]
