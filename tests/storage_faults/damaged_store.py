"""Store for damage campaigns, observations of clients and operators, and their comparison.

`observe` starts a broker on a store, advances the clock until all messages are due, and reads the
store as clients do: pulls of all queues, with and without a tag, queries by key, offsets of groups,
tables. Damage is harmless if the observations equal those of the undamaged store.
"""

from __future__ import annotations

import asyncio
import logging
import random
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from duemq.auth.accounts import Users
from duemq.auth.accounts_file import ACCOUNTS_FILE, read_accounts, write_accounts
from duemq.auth.model import User
from duemq_common.errors import RecordUnreadable
from duemq_common.topics import QUARANTINE_TOPIC
from message_store.layout import CRC_MASK
from message_store.log.record import Record, decode_record
from message_store.verify import verify_store
from tests.simulation.rig import Gate, Rig
from tests.storage_faults.injector import Injector
from tests.storage_faults.workload import FAR_MS, TAGS, Workload
from tests.support.loopback_broker import TOPICS, pull_request
from timer_store.verify import TIMERS

OK = 0
NEAR_STEPS, NEAR_STEP_MS = 50, 1_000  # longer than any level or timer of the workload
COMPILE_S_MAX = 400.0
LATE_MS = 2 * NEAR_STEP_MS
VOLATILE = ("TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS")
QUEUES = [*((topic, queue_id) for topic in TOPICS for queue_id in (0, 1)), (QUARANTINE_TOPIC, 0)]
Seen = dict[str, Any]


async def make_store(
    home: Path, properties: dict[str, str], *, rounds: int, killed: bool
) -> dict[str, Any]:
    """Make a store with delivered and pending messages; return its path, time and messages.

    Args:
        killed: Whether to use the files of a running broker.
    """
    workload = Workload(
        home, Injector(), properties=properties, rounds=rounds, answer_s=COMPILE_S_MAX
    )
    try:
        await workload.live_once(killed=killed)
    finally:
        workload.patch.undo()
    report, rig = workload.report, workload.rig
    assert not report.problems, report.problems
    path = rig.root / "config" / ACCOUNTS_FILE
    write_accounts(path, _users(), {})
    return {
        "messages": {each.body.split()[0]: asdict(each) for each in report.acknowledged},
        "now_ms": rig.clock.now_ms(),
        "root": str(rig.root),
        "properties": properties,
    }


def _users() -> Users:
    return {name: User(name, f"secret of {name}") for name in ("admin", "reader", "writer")}


class Warnings(logging.Handler):
    """Log handler that records warnings."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage()[:300])


def nothing() -> None:
    """Damage nothing."""


def examine(
    store: dict[str, Any],
    root: Path,
    *,
    before: Callable[[], None] = nothing,
    after_start: Callable[[], None] = nothing,
) -> Seen:
    """Verify a store, start a broker on it, and observe it.

    The result has `findings`, `warnings`, and either `refused` (the error of the start) or `seen`
    (the result of `observe`).

    Args:
        before: Called first.
        after_start: Called after the start of the broker.
    """
    warnings = Warnings()
    logging.getLogger().addHandler(warnings)
    before()
    report = verify_store(root, parts=[TIMERS])
    found: Seen = {"findings": [str(f) for f in report.findings if f.severity != "note"]}
    try:
        read_accounts(root / "config" / ACCOUNTS_FILE)
        with pytest.MonkeyPatch.context() as patch:
            found["seen"] = asyncio.run(observe(store, root, Gate(patch), after_start))
    except Exception as error:
        found["refused"] = f"{type(error).__name__}: {error}"[:300]
    logging.getLogger().removeHandler(warnings)
    return found | {"warnings": [line.replace(str(root), "ROOT") for line in warnings.lines]}


async def observe(
    store: dict[str, Any], root: Path, gate: Gate, after_start: Callable[[], None] = nothing
) -> Seen:
    """Start a broker on a store, advance past all due times, and return what clients read."""
    chance = random.Random(1)
    rig = Rig(root.parent, gate, chance, store["properties"])
    rig.root = root
    rig.clock.set_ms(store["now_ms"] + 1_000)
    opened_ms = rig.clock.now_ms()
    await rig.start()
    tables = await _tables(rig)
    after_start()
    for _ in range(NEAR_STEPS):
        await rig.advance(NEAR_STEP_MS)
    for _ in range(2):
        await rig.advance(FAR_MS)
    await rig.confirmed()
    messages = defaultdict[str, list[Any]](list)
    records = [record for queue in QUEUES for record in await _pulled(rig, *queue)]
    for record in records:
        name = name_of(record)
        if record.topic == QUARANTINE_TOPIC:
            name = f"{QUARANTINE_TOPIC}/{record.queue_offset}"
        due_ms = store["messages"].get(name, {}).get("due_ms", 0)
        messages[name].append(_content(record, due_ms, opened_ms))
    seen = {
        "messages": {name: sorted(found, key=str) for name, found in messages.items()},
        "tagged": await _tagged(rig),
        "keys": {
            name: await _found_by_key(rig, message) for name, message in (store["messages"].items())
        },
        "tables": tables,
    }
    await rig.stop()
    return seen


def name_of(record: Record) -> str:
    """Return the name of a message, even if its body is damaged."""
    if zlib.crc32(record.body) & CRC_MASK != record.body_crc:
        return "m" + record.properties.get("UNIQ_KEY", "U?")[1:]  # set by the workload
    return record.body.split(b" ")[0].decode("latin-1")


async def _tables(rig: Rig) -> Seen:
    """Return the tables after the start: topics, groups, offsets."""
    parts = rig.broker.parts
    bounds = {f"{topic}/{n}": rig.broker.store.queue_bounds(topic, n)[0] for topic, n in QUEUES}
    offsets = {f"{t}/{n}": parts.offsets.query("readers", t, n) for t, n in QUEUES}
    return {
        "topics": _rows(parts.topics.to_json()["topicConfigTable"]),
        "groups": _rows(parts.groups.to_json()["subscriptionGroupTable"]),
        "offsets": offsets,
        "bounds": bounds,
    }


def _rows(table: dict[str, Any]) -> dict[str, str]:
    return {name: str(row) for name, row in table.items()}


async def _tagged(rig: Rig) -> dict[str, list[str]]:
    """Return the names of the messages that consumers with a tag receive, with the tag."""
    found = defaultdict[str, list[str]](list)
    for topic, queue_id in QUEUES:
        for tag in TAGS:
            for record in await _pulled(rig, topic, queue_id, tag):
                if record.properties.get("TAGS") == tag:  # a client compares the tag, too
                    found[name_of(record)].append(tag)
    return dict(found)


async def _pulled(rig: Rig, topic: str, queue_id: int, tags: str = "*") -> list[Record]:
    """Return the messages that a client receives; it drops those after damage in a response."""
    found: list[Record] = []
    offset, retried = 0, 0
    while True:
        fields = {"sysFlag": "4", "consumerGroup": "observers", "subscription": tags}
        request = pull_request(topic, queue_id, offset, **fields)
        response = await rig.call(request)
        fields = response.fields or {}
        following = int(fields.get("nextBeginOffset", "-1"))
        if response.code == OK:
            found += _decoded(bytes(response.body))
        elif following <= offset or retried > 10_000:
            return found
        offset, retried = following, retried + 1


def _decoded(body: bytes) -> list[Record]:
    """Decode a response like Apache's client: up to the first damaged message."""
    found: list[Record] = []
    view = memoryview(body)
    while view:
        try:
            found.append(decode_record(view, 0, check_crc=False))
        except (RecordUnreadable, ValueError):
            return found
        view = view[found[-1].total_size :]
    return found


def _content(record: Record, due_ms: int, opened_ms: int) -> list[Any]:
    """Return the properties of a message that damage elsewhere must not change."""
    kept = {k: v for k, v in record.properties.items() if k not in VOLATILE}
    late = record.store_ms > max(due_ms, opened_ms) + LATE_MS and due_ms > opened_ms
    return [
        record.topic,
        record.queue_id,
        record.body.decode("latin-1"),
        str(sorted(kept.items())),
        record.flag,
        record.sys_flag,
        record.born_ms,
        str(record.born_host),
        record.reconsume_times,
        record.store_ms < due_ms,
        late,
    ]


async def _found_by_key(rig: Rig, message: dict[str, Any]) -> int:
    """Return the number of results, at most one, of a query by the key of a message."""
    key = f"k{message['body'].split()[0][1:]}"
    store = rig.broker.store
    return min(len(store.query_keys(message["topic"], key, 10, 0, 1 << 60)), 1)


def differences(reference: Seen, seen: Seen) -> dict[str, list[str]]:
    """Return the differences between two observations: names of messages, keys and tables."""
    out = {}
    for part in ("messages", "tagged", "keys"):
        names = reference[part].keys() | seen[part].keys()
        names = {name for name in names if not name.startswith(QUARANTINE_TOPIC)}
        out[part] = sorted(n for n in names if reference[part].get(n) != seen[part].get(n))
    tables = []
    for name, rows in reference["tables"].items():
        mine = seen["tables"][name]
        tables += [f"{name}: {k}" for k in rows.keys() | mine.keys() if rows.get(k) != mine.get(k)]
    out["tables"] = sorted(tables)
    return out


def fates(reference: Seen, seen: Seen, names: list[str]) -> Counter[str]:
    """Return the numbers of differing messages: lost, doubled, early, late, changed."""
    found = Counter[str]()
    for name in names:
        before, now = reference["messages"].get(name, []), seen["messages"].get(name, [])
        if len(now) != len(before):
            found["lost" if len(now) < len(before) else "doubled"] += 1
        elif any(each[-2] for each in now):
            found["early"] += 1
        else:
            found["late" if any(each[-1] for each in now) else "changed"] += 1
    return found
