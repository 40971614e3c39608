"""Bulk decisions: one decision about all timers that a search has found, in two steps.

    listing --> ready --confirmed--> running --> done
       |          |                     |-----> stopped
       +----------+---------------------+-----> failed

The first step lists the hits. The second one decides on exactly these messages, by their unique
ids and in batches, so a message that was sent after the confirmation is not touched. A message
that another operator has decided on meanwhile, or whose due time has left the search's range, has a
result that says so. Jobs are in memory; the log of the broker has the decisions themselves.
"""

from __future__ import annotations

import asyncio
from array import array
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

REMARKS_MAX: Final = 255

VERDICTS: Final = (
    "open",
    "done",
    "before",
    "already_delivered",
    "unknown",
    "refused",
    "no_response",
)
"""Results of an item: not decided on yet; done; cancelled before; delivered; not pending in the
range of the search; refused; the request failed, so the decision may have been made or not."""
CODES: Final = {verdict: code for code, verdict in enumerate(VERDICTS)}
OPEN: Final = CODES["open"]
ACTIVE: Final = ("listing", "running")


@dataclass(slots=True)
class ItemList:
    """Messages of one topic in order of their due times, as compact columns.

    Attributes:
        ends: End of each name in `names`.
        verdicts: Index in `VERDICTS`.
        remark_indexes: Index in the job's remarks.
    """

    names: bytearray = field(default_factory=bytearray)
    ends: array[int] = field(default_factory=lambda: array("Q"))
    due_ms: array[int] = field(default_factory=lambda: array("q"))
    verdicts: bytearray = field(default_factory=bytearray)
    remark_indexes: bytearray = field(default_factory=bytearray)

    def __len__(self) -> int:
        return len(self.due_ms)

    def add(self, name: str, due_ms: int) -> None:
        """Append a message."""
        self.names += name.encode("utf-8", "surrogatepass")
        self.ends.append(len(self.names))
        self.due_ms.append(due_ms)
        self.verdicts.append(OPEN)
        self.remark_indexes.append(0)

    def name(self, index: int) -> str:
        """Return the unique id of a message."""
        first = self.ends[index - 1] if index else 0
        return self.names[first : self.ends[index]].decode("utf-8", "surrogatepass")


@dataclass(frozen=True, slots=True)
class TimerSearch:
    """Search whose hits a job decides on; empty texts: any."""

    topic: str
    key: str
    from_ms: int
    until_ms: int


@dataclass(frozen=True, slots=True)
class BulkItem:
    """Message of a job."""

    topic: str
    name: str
    due_ms: int
    verdict: str
    remark: str


@dataclass(slots=True, kw_only=True)
class BulkJob:
    """Decision about the hits of a search.

    Attributes:
        account: Access key of the login that prepared it; only this account can start it.
        deliver_ms: New due time of a move; None for other actions.
        lists: Messages by topic.
        nameless: Hits without an id or with an unreadable record, which the job cannot decide on.
        counts: Number of items by verdict.
        damage: Unreadable parts of the timer log, whose messages the list does not have.
        remarks: Distinct remarks of items; the first one is empty.
        started_ms, ended_ms: Times of the start and the end of the decisions; 0: not yet.
    """

    id: str
    account: str
    action: str
    search: TimerSearch
    deliver_ms: int | None
    prepared_ms: int
    prepared_s: float
    state: str = "listing"
    lists: dict[str, ItemList] = field(default_factory=dict)
    nameless: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    damage: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=lambda: [""])
    failure: str = ""
    stopped_by: str = ""
    started_ms: int = 0
    ended_ms: int = 0
    task: asyncio.Task[None] | None = None

    @property
    def total(self) -> int:
        """Number of messages."""
        return sum(map(len, self.lists.values()))

    @property
    def decided(self) -> int:
        """Number of messages with a result."""
        return sum(self.counts.values()) - self.counts["open"]

    def items(self, verdict: str = "", first: int = 0) -> Iterator[tuple[int, BulkItem]]:
        """Yield position and message, of one verdict if it is given, from a position on."""
        code, base = CODES[verdict] if verdict else -1, 0
        for topic, items in self.lists.items():
            index = max(first - base, 0)
            while index < len(items):
                if code >= 0:
                    index = items.verdicts.find(code, index)
                    if index < 0:
                        break
                result = VERDICTS[items.verdicts[index]]
                remark = self.remarks[items.remark_indexes[index]]
                one = BulkItem(topic, items.name(index), items.due_ms[index], result, remark)
                yield base + index, one
                index += 1
            base += len(items)

    def add(self, topic: str | None, name: str | None, due_ms: int | None) -> None:
        """Add a hit; one without topic, id or due time is only counted."""
        if not topic or not name or due_ms is None:
            self.nameless += 1
            return
        self.lists.setdefault(topic, ItemList()).add(name, due_ms)
        self.counts["open"] += 1

    def move(self) -> dict[str, object]:
        """Return the new due time as an argument of decisions; nothing for other actions."""
        return {} if self.deliver_ms is None else {"deliver_ms": self.deliver_ms}

    def fail(self, reason: str) -> None:
        """End the job."""
        self.state, self.failure = "failed", reason

    def set_result(self, items: ItemList, index: int, verdict: str, remark: str = "") -> None:
        """Set the result of a message."""
        items.verdicts[index] = CODES[verdict]
        if remark:
            if remark not in self.remarks and len(self.remarks) <= REMARKS_MAX:
                self.remarks.append(remark)
            position = self.remarks.index(remark) if remark in self.remarks else 0
            items.remark_indexes[index] = position
        self.counts["open"] -= 1
        self.counts[verdict] += 1
