"""A store that kills left behind, as an audit sees it, held against what the client knows."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from reconciliation.audit.verdicts import SCHEDULE_TOPIC, TIMER_TOPIC
from reconciliation.spark.read import audit_stores, read_table
from tests.crash.books import BODY, PendingCounts

DELIVERED = frozenset({"ok", "late"})  # late: while no broker ran
FACTS = ("unique_id", "leaf", "store_ms", "due_ms", "deliveries", "verdict", "why")


def audit_faults(spark: Any, root: Path, books: PendingCounts) -> list[str]:
    """Return what an audit says of a store and should not, and what it should say and does not."""
    paths = [str(root)]
    verdicts, unread = audit_stores(spark, paths)
    rows = [row.asDict() for row in verdicts.select(*FACTS).collect()]
    names = ("unique_id", "prepared_offset")
    sent = read_table(spark, paths, "messages", names, topics=books.topic).collect()
    straight = {_number(row["unique_id"]) for row in sent if row["prepared_offset"] >= 0}
    delivered = Counter(_number(row["unique_id"]) for row in sent)
    for number in straight:  # a timer whose time had passed when it was put waits nowhere
        del delivered[number]
    held = f"{SCHEDULE_TOPIC},{TIMER_TOPIC}"
    records = read_table(spark, paths, "messages", ("phys_offset", "body"), topics=held)
    waiting = [row for row in rows if not row["deliveries"]]
    bodies = {row["phys_offset"]: bytes(row["body"]) for row in records.collect()}
    levels = sorted(n for n in straight if books.choice(n) < len(books.delays_ms))
    found = [f"levels that never waited: {levels[:5]}"] if levels else []
    found += _of_numbers(rows, books, straight) + _of_deliveries(rows, delivered)
    found += [text for row in waiting for text in _of_waiting(row, bodies, books)]
    return found + [f"{row['damage']} at {row['phys_offset']}" for row in unread.collect()]


def _of_numbers(rows: list[dict[str, Any]], books: PendingCounts, straight: set[int]) -> list[str]:
    """Each message that waited has one row: all acknowledged ones, none that were not sent."""
    told = Counter(_number(row["unique_id"]) for row in rows)
    lines = {
        "acknowledged and unknown": books.acknowledged - told.keys() - straight,
        "waited, and did not": told.keys() & straight,
        "told twice": {number for number, count in told.items() if count > 1},
        "never sent": {number for number in told if not 0 <= number < books.attempted},
    }
    return [f"{what}: {sorted(numbers)[:5]}" for what, numbers in lines.items() if numbers]


def _of_deliveries(rows: list[dict[str, Any]], delivered: Counter[int]) -> list[str]:
    """What the topic has was delivered, once and well; nothing else was."""
    told = {_number(row["unique_id"]) for row in rows if row["verdict"] in DELIVERED}
    told -= {_number(row["unique_id"]) for row in rows if not row["deliveries"]}
    wrong = [
        f"{row['verdict']} ({row['why']}): {_number(row['unique_id'])}"
        for row in rows if row["verdict"] not in DELIVERED | {"pending"}
    ]  # fmt: skip
    if told != delivered.keys():
        wrong.append(f"delivered by one of both: {sorted(told ^ delivered.keys())[:5]}")
    return wrong


def _of_waiting(row: dict[str, Any], bodies: dict[int, bytes], books: PendingCounts) -> list[str]:
    """What waits is promised for its delay behind its birth, or behind the moment of storing."""
    number, born_ms, choice = BODY.unpack_from(bodies[row["leaf"]])
    delay_ms = (*books.delays_ms, *books.timers_ms)[choice]
    if born_ms + delay_ms <= row["due_ms"] <= row["store_ms"] + delay_ms:
        return []
    return [f"{number} is promised for {row['due_ms']}, born {born_ms}, delay {delay_ms}"]


def _number(unique_id: str) -> int:
    return int(unique_id, 16)
