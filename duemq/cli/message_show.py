"""`duemq message show`: state and history of a message.

DueMQ brokers return the history. Of Apache's brokers, the record is shown, by offset message id, or
by unique key and topic.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from duemq.cli.exits import Exit, fail
from duemq.cli.messages import body_text, table_time, time_text
from duemq.cli.options import Target
from duemq.cli.output import console, fitted, heading, print_json, table
from duemq.cli.times import duration_text
from duemq_common.bodies.histories import MessageHistory

COLUMNS: Final = ("event", "at (UTC)", "due (UTC)", "#log offset", "place", "remark")
OPTIONAL: Final = ("remark", "place", "#log offset")
FIRST_SHOWN: Final = (
    "state",
    "reason",
    "popped",
    "due",
    "delivered",
    "schedule",
    "planned",
    "next",
    "stored",
    "born",
    "body",
    "topic",
)
TIMES: Final = ("due_ms", "delivered_ms", "planned_ms", "next_ms", "born_ms", "stored_ms")


def show_message(name: str, topic: str, target: Target) -> None:
    """Print the messages with this id or key; exit 1 if there is none."""
    answer = target.ask(lambda admin: admin.message_history(name, topic=topic))
    shown = [_described(each) for each in answer.messages]
    if not shown:
        where = f" of topic {topic}" if topic else ""
        fail(f"no broker has a message {name}{where}", Exit.FOUND_FAULT)
    if target.as_json:
        print_json(shown)
        return
    for one in shown:
        _print_message(one)
    if answer.more:
        print(f"Only the newest {len(shown)} messages are shown; there are more.")
    if answer.pops_omitted:
        print("Only the newest pops were examined: older ones may be open too.")


def _described(message: MessageHistory) -> dict[str, Any]:
    """Return a message for `--json`: times also as text, body as text."""
    shown: dict[str, Any] = msgspec.to_builtins(message) | {"body": body_text(message.body)}
    for name in TIMES:
        time_ms = shown[name]
        shown[name.removesuffix("_ms")] = None if time_ms is None else time_text(time_ms)
    for record in shown["records"]:
        record["stored"] = time_text(record["store_ms"])
    for pop in shown["pops"]:
        pop["popped"] = time_text(pop["popped_ms"])
        pop["invisible_until"] = time_text(pop["invisible_until_ms"])
    return shown


def _print_message(shown: dict[str, Any]) -> None:
    from rich.console import Group

    out = console()
    facts = table("", ("", ""), _facts(shown))
    facts.show_header = False
    parts = [heading(str(shown.get("unique_key") or shown["offset_message_id"])), facts]
    if "records" in shown:
        rows = [_row(record) for record in shown["records"]]
        history = fitted(COLUMNS, rows, optional=OPTIONAL, width=out.width)
        parts += ["", heading("history"), history]
    out.print(Group(*parts, ""))


def _facts(shown: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the non-empty fields of a message as table rows."""
    if shown.get("due_ms") is not None and shown.get("delivered_ms") is not None:
        off_ms = shown["delivered_ms"] - shown["due_ms"]
        off = duration_text(abs(off_ms)) + (" late" if off_ms >= 0 else " early")
        shown = {**shown, "delivered": f"{shown['delivered']} ({off})"}
    shown = {**shown, "popped": "\n".join(map(_pop_text, shown["pops"]))}
    facts = []
    rest = [name for name in shown if name not in (*FIRST_SHOWN, "records", "pops", *TIMES)]
    for name in (*FIRST_SHOWN, *rest):
        value = shown.get(name)
        if value in (None, "", {}):
            continue
        if isinstance(value, dict):
            value = "\n".join(f"{key} = {text}" for key, text in value.items())
        facts.append((name.replace("_", " "), str(value)))
    return facts


def _pop_text(pop: dict[str, Any]) -> str:
    return (
        f"by group {pop['group']}, not acknowledged, invisible until {pop['invisible_until']} "
        f"(attempt {pop['attempt']})"
    )


def _row(record: dict[str, Any]) -> tuple[object, ...]:
    due_ms = record["due_ms"]
    position = f"{record['topic']}/{record['queue_id']}/{record['queue_offset']}"
    return (
        record["event"],
        table_time(record["store_ms"]),
        table_time(due_ms),
        record["commit_log_offset"],
        position,
        record["detail"],
    )
