"""Comparison of an audit of a killed broker's store with the messages sent by a client."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from duemq_common.topics import PENDING_TOPICS
from spark_reconciliation.spark.read import audit_stores, read_table
from tests.crash.sent_messages import BODY, SentMessages

DELIVERED = frozenset({"ok", "late"})  # `late`: no broker was running at the due time
COLUMNS = ("unique_id", "leaf", "store_ms", "due_ms", "deliveries", "verdict", "why")


def audit_faults(spark: Any, root: Path, sent: SentMessages) -> list[str]:
    """Audit a store; return descriptions of all verdicts that contradict the sent messages."""
    paths = [str(root)]
    verdicts, unread = audit_stores(spark, paths)
    rows = [row.asDict() for row in verdicts.select(*COLUMNS).collect()]
    names = ("unique_id", "prepared_offset")
    messages = read_table(spark, paths, "messages", names, topics=sent.topic).collect()
    # A timer that was due when the broker received it is stored in its topic directly.
    direct = {_number(row["unique_id"]) for row in messages if row["prepared_offset"] >= 0}
    delivered = {_number(row["unique_id"]) for row in messages} - direct
    delayed = ",".join(PENDING_TOPICS)
    records = read_table(spark, paths, "messages", ("phys_offset", "body"), topics=delayed)
    bodies = {row["phys_offset"]: bytes(row["body"]) for row in records.collect()}
    levels = sorted(n for n in direct if sent.delay_index(n) < len(sent.delays_ms))
    found = [f"level messages stored without their delay: {levels[:5]}"] if levels else []
    found += _wrong_numbers(rows, sent, direct) + _wrong_deliveries(rows, delivered)
    found += [
        text
        for row in rows
        if not row["deliveries"]
        for text in _wrong_due_time(row, bodies[row["leaf"]], sent)
    ]
    return found + [f"{row['damage']} at {row['phys_offset']}" for row in unread.collect()]


def _wrong_numbers(rows: list[dict[str, Any]], sent: SentMessages, direct: set[int]) -> list[str]:
    """Check that each acknowledged delayed message has one row, and each row a sent message."""
    counts = Counter(_number(row["unique_id"]) for row in rows)
    wrong = {
        "acknowledged but unknown": sent.acknowledged - counts.keys() - direct,
        "delayed although stored directly": counts.keys() & direct,
        "more than one row": {number for number, count in counts.items() if count > 1},
        "never sent": {number for number in counts if not 0 <= number < sent.attempted},
    }
    return [f"{what}: {sorted(numbers)[:5]}" for what, numbers in wrong.items() if numbers]


def _wrong_deliveries(rows: list[dict[str, Any]], delivered: set[int]) -> list[str]:
    """Check that the rows with a delivery are the messages of the topic, all without faults."""
    audited = {
        _number(row["unique_id"])
        for row in rows
        if row["verdict"] in DELIVERED and row["deliveries"]
    }
    wrong = [
        f"{row['verdict']} ({row['why']}): {_number(row['unique_id'])}"
        for row in rows
        if row["verdict"] not in DELIVERED | {"pending"}
    ]
    if audited != delivered:
        wrong.append(f"in the audit or in the topic only: {sorted(audited ^ delivered)[:5]}")
    return wrong


def _wrong_due_time(row: dict[str, Any], body: bytes, sent: SentMessages) -> list[str]:
    """Check that a pending message is due its delay after it was sent or stored."""
    number, sent_ms, index = BODY.unpack_from(body)
    delay_ms = (*sent.delays_ms, *sent.timers_ms)[index]
    if sent_ms + delay_ms <= row["due_ms"] <= row["store_ms"] + delay_ms:
        return []
    return [f"{number} is due at {row['due_ms']}, sent at {sent_ms}, delay {delay_ms} ms"]


def _number(unique_id: str) -> int:
    return int(unique_id, 16)
