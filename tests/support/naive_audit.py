"""Naive audit with dictionaries and loops, as the reference for Spark's verdicts."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from zlib import crc32

from delayed_delivery.names import FIRED_BODY, MOVED_BODY
from duemq_common.topics import DECISION_TOPIC, QUARANTINE_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from spark_reconciliation.audit.audit_config import AuditConfig

Row = dict[str, Any]
FOLLOWING = {(crc32(body) & 0x7FFFFFFF, len(body)) for body in (FIRED_BODY, MOVED_BODY)}


@dataclass
class History:
    """Records and events of one root record."""

    root: int = -1
    held: list[Row] = field(default_factory=list)
    units: list[Row] = field(default_factory=list)
    sent: list[Row] = field(default_factory=list)
    parked: list[Row] = field(default_factory=list)
    cancels: list[Row] = field(default_factory=list)

    @property
    def has_second(self) -> bool:
        """Whether a second unit points at a pending record of the message."""
        places = {row["phys_offset"] for row in self.held}
        return any(u.get("second") and u["phys_offset"] in places for u in self.units)


def naive_audit(
    messages: list[Row],
    queues: list[Row],
    cursors: list[Row],
    config: AuditConfig,
    levels_ms: Mapping[str, tuple[int, ...]] | None = None,
) -> dict[tuple[str, int], str]:
    """Return the verdict of each root of each store.

    Args:
        levels_ms: Delays of the levels, for stores that have them.
    """
    verdicts = {}
    for store in {row["store"] for row in messages}:
        tables = [
            [row for row in rows if row["store"] == store] for rows in (messages, queues, cursors)
        ]
        own = replace(config, levels_ms=(levels_ms or {}).get(store, config.levels_ms))
        for root, verdict in _Store(*tables, own).verdicts().items():  # type: ignore[call-arg]
            verdicts[store, root] = verdict
    return verdicts


class _Store:
    def __init__(
        self, messages: list[Row], queues: list[Row], cursors: list[Row], config: AuditConfig
    ) -> None:
        self.config, self.queues = config, queues
        self.log_min = min(row["phys_offset"] for row in messages)
        newest = max(row["store_ms"] for row in messages if row["store_ms"] is not None)
        self.as_of_ms = newest if config.as_of_ms is None else config.as_of_ms
        self.level_cursors = {r["queue_id"]: r["value"] for r in cursors if r["kind"] == "level"}
        read = [r["value"] for r in cursors if r["kind"] == "timer" and r["name"] == "read_ms"]
        self.read_ms = read[0] if read else None
        self.rows = [dict(row) for row in messages if self._counts(row)]
        self.rows.sort(key=lambda row: row["phys_offset"])
        for row in self.rows:
            named = row["prepared_offset"] < 0
            row["origin"] = ~row["prepared_offset"] if named else None
            if named and row["origin"] >= (1 << 48) - 1:  # larger than any log offset
                row["origin"] = row["phys_offset"]
            row["kind"] = _kind(row)
        self.held = {r["phys_offset"]: r for r in self.rows if r["kind"] == "held"}
        self._name_rolls()
        self._name_deliveries()
        self.copies: dict[int, list[int]] = defaultdict(list)
        for offset, row in self.held.items():
            if row["origin"] is not None and row["origin"] < offset:
                self.copies[row["origin"]].append(offset)

    @staticmethod
    def _counts(row: Row) -> bool:
        if row["damage"] not in (None, "body-crc"):
            return False
        return row["sys_flag"] & 0xC in (0, 8)

    def _name_rolls(self) -> None:
        self._count_labelled_rolls()
        groups: dict[Any, list[Row]] = defaultdict(list)
        for row in self.held.values():
            groups[_identity(row), row["turn"]].append(row)
        for (identity, turn), rows in list(groups.items()):
            nameless = [r for r in rows if r["rolls"] is not None and r["origin"] is None]
            for row, before in zip(nameless, groups.get((identity, turn - 1), []), strict=False):
                if before["phys_offset"] < row["phys_offset"]:
                    row["origin"] = before["phys_offset"]

    def _count_labelled_rolls(self) -> None:
        """Set the number of rolls of each row; Apache's timeline, whose label is 0, counts none."""
        timers = Counter(
            _identity(row)
            for row in self.held.values()
            if row["topic"] == TIMER_TOPIC and row["rolls"] is None and not _is_copy(row)
        )
        labelled: Counter[Any] = Counter()
        for row in self.held.values():
            row["turn"] = row["rolls"] or 0
            if row["rolls"] == 0 and row["origin"] is None:
                identity = _identity(row)
                row["turn"] = labelled[identity] // max(timers[identity], 1) + 1
                labelled[identity] += 1

    def _name_deliveries(self) -> None:
        ended = {r["origin"] for r in self.rows if r["kind"] in ("delivery", "quarantine")}
        open_rows: dict[Any, list[Row]] = defaultdict(list)
        for offset, row in self.held.items():
            if offset not in ended:
                open_rows[_identity(row)].append(row)
        seen: dict[Any, int] = defaultdict(int)
        for row in self.rows:
            if row["kind"] != "candidate" or not open_rows.get(_identity(row)):
                continue
            rows = open_rows[_identity(row)]
            newest = max(other["turn"] for other in rows)
            rows = [other for other in rows if other["turn"] == newest]
            target = rows[min(seen[_identity(row)], len(rows) - 1)]["phys_offset"]
            seen[_identity(row)] += 1
            if target < row["phys_offset"]:
                row["kind"], row["origin"] = "delivery", target

    def _root(self, offset: int) -> int:
        above = {copy: parent for parent, copies in self.copies.items() for copy in copies}
        while offset in above:
            offset = above[offset]
        return offset

    def verdicts(self) -> dict[int, str]:
        """Return the verdict of each root."""
        histories: dict[int, History] = defaultdict(History)
        for row in self.rows:
            for offset in self._targets(row):
                history = histories[self._root(offset)]
                part = {
                    "held": history.held,
                    "delivery": history.sent,
                    "quarantine": history.parked,
                }
                part.get(row["kind"], history.cancels).append(row | {"origin": offset})
        markers = {
            r["phys_offset"]
            for r in self.rows
            if r["kind"] == "cancel" and r["topic"] == TIMER_TOPIC
        }
        for unit in self.queues:
            is_held = unit["topic"] in (SCHEDULE_TOPIC, TIMER_TOPIC)
            if is_held and (unit.get("second") or unit["phys_offset"] not in markers):
                histories[self._root(unit["phys_offset"])].units.append(unit)
        for root, history in histories.items():
            history.root = root
        judge = {r: self._judge(history) for r, history in histories.items()}
        return {root: verdict for root, verdict in judge.items() if verdict}

    def _targets(self, row: Row) -> list[int]:
        if row["kind"] == "held":
            return [row["phys_offset"]]
        if row["kind"] == "cancel" and row["origin"] is None:
            return [
                offset
                for offset, held in self.held.items()
                if offset < row["phys_offset"]
                and held["out_ms"] == row["out_ms"] is not None
                and held["unique_id"] is not None
                and "+".join(x for x in (held["real_topic"], held["unique_id"]) if x is not None)
                == row["cancels"]
            ]
        has_origin = row["kind"] not in ("candidate", None) and row["origin"] is not None
        return [row["origin"]] if has_origin else []

    def _judge(self, history: History) -> str:
        if not history.held and history.root < self.log_min:
            return _judge_removed(history)
        if not history.held:
            if history.units:
                return "quarantined" if history.parked else "corrupt"
            return "unexpected" if history.sent or history.parked else ""
        leaf = history.held[-1]
        ends = sorted(r["phys_offset"] for r in (*history.sent, *history.parked))
        if any(len(self.copies.get(row["phys_offset"], ())) > 1 for row in history.held):
            return "moved_twice"
        if any(self.copies.get(row["origin"]) for row in (*history.sent, *history.parked)):
            return "moved_twice"
        if len(ends) > 1:
            return "duplicated"
        if history.sent:
            first = history.sent[0]
            same = ("body_crc", "body_len", "properties_hash", "head_hash")
            if any(first[name] != leaf[name] for name in same) or first["damage"]:
                return "corrupt"
        cancels = [
            row["phys_offset"]
            for row in history.cancels
            if not self.copies.get(row["origin"])
            or row["phys_offset"] < min(self.copies[row["origin"]])
        ]
        cancelled = bool(cancels) and (not ends or min(cancels) < ends[0])
        if history.sent:
            return self._judge_sent(history, leaf, cancelled)
        if history.has_second:
            return "corrupt"
        if history.parked:
            return "quarantined"
        if any(self._follows_a_record(row) for row in history.cancels):
            return "lost"
        return "cancelled" if cancelled else self._judge_pending(history, leaf)

    def _follows_a_record(self, row: Row) -> bool:
        """Return whether a decision follows a delivery, or a copy that does not exist."""
        is_own = row["prepared_offset"] < 0 and not self.copies.get(row["origin"])
        return is_own and (row["body_crc"], row["body_len"]) in FOLLOWING

    def _judge_sent(self, history: History, leaf: Row, cancelled: bool) -> str:
        first, due_ms = history.sent[0], self._due_ms(history, leaf)
        if cancelled:
            return "cancelled_but_fired"
        target = (leaf["real_topic"], leaf["real_queue_id"])
        if None not in target and (first["topic"], first["queue_id"]) != target:
            return "misrouted"
        if leaf["other_time"] or history.has_second:
            return "corrupt"
        if first["queued"] is False:
            return "unreachable"
        if due_ms is not None and first["store_ms"] < due_ms:
            marks = history.cancels
            named = [r["phys_offset"] for r in marks if r["prepared_offset"] < 0]
            return "moved" if any(offset > first["phys_offset"] for offset in named) else "early"
        if due_ms is not None and first["store_ms"] - due_ms > self.config.late_ms:
            return "late"
        copies = [row for row in history.held if row["phys_offset"] != history.root]
        moved = [row for row in copies if row["rolls"] is None]
        other_time = self._due_ms(history, history.held[0]) != due_ms
        return "moved" if moved and other_time else "ok"

    def _judge_pending(self, history: History, leaf: Row) -> str:
        due_ms = self._due_ms(history, leaf)
        if leaf["damage"] or due_ms is None:
            return "corrupt"
        if leaf["queued"] is False:
            return "unreachable"
        if leaf["other_time"]:
            return "corrupt"
        overdue = due_ms + self.config.late_ms < self.as_of_ms
        passed = overdue
        if leaf["topic"] == SCHEDULE_TOPIC and self.level_cursors:
            cursor = self.level_cursors.get(leaf["queue_id"], 0)
            passed = leaf["queue_offset"] < cursor
        if leaf["topic"] == TIMER_TOPIC and self.read_ms is not None and leaf["out_ms"] is not None:
            passed = leaf["out_ms"] < self.read_ms
        if passed:
            return "lost"
        return "late" if overdue else "pending"

    def _due_ms(self, history: History, leaf: Row) -> int | None:
        if leaf["topic"] == TIMER_TOPIC:
            return leaf["due_ms"]
        units = [unit for unit in history.units if unit["phys_offset"] == leaf["phys_offset"]]
        times = [unit["tags_code"] for unit in units if unit["topic"] == SCHEDULE_TOPIC]
        if times and abs(max(times)) >= 1 << 31:
            return max(times)
        if leaf["out_ms"] is None and leaf["due_ms"] is not None:
            return leaf["due_ms"]
        level = min(leaf["level"], len(self.config.levels_ms))
        return leaf["store_ms"] + self.config.levels_ms[level - 1]


def _judge_removed(history: History) -> str:
    """Return the verdict of a message whose record was before the start of the log."""
    ends = len(history.sent) + len(history.parked)
    if ends:
        return "duplicated" if ends > 1 else "removed"
    if any(unit.get("pending") for unit in history.units):
        return "removed" if history.cancels else "lost"
    return "removed" if any(not unit.get("pending") for unit in history.units) else ""


def _kind(row: Row) -> str | None:
    topic, named = row["topic"], row["origin"] is not None
    if topic == TIMER_TOPIC:
        return "held" if row["cancels"] is None else "cancel"
    if topic == SCHEDULE_TOPIC:
        return "held"
    if named:
        return {DECISION_TOPIC: "cancel", QUARANTINE_TOPIC: "quarantine"}.get(topic, "delivery")
    waited = row["level"] is not None and row["real_topic"] is not None
    return "candidate" if waited or row["out_ms"] is not None else None


def _is_copy(row: Row) -> bool:
    return row["origin"] is not None and row["origin"] < row["phys_offset"]


def _identity(row: Row) -> tuple[Any, ...]:
    own = row["unique_id"]
    if own is None:
        own = f"{row['body_crc']}:{row['body_len']}"
    names = ("real_topic", "real_queue_id")
    if row["real_topic"] is None:  # delivered by Apache's timeline in RocksDB
        names = ("topic", "queue_id")
    return own, *(row[name] for name in (*names, "born_ms", "level", "out_ms"))
