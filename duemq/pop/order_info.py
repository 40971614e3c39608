"""Order info: the messages of the last orderly pop of each queue, in consumerOrderInfo.json.

    pop --> the queue is blocked --ack of each message--> free, the consumer offset advances
                    |
                    +-- a message is visible again --> free: the next pop begins with it

Source: ConsumerOrderInfoManager
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Final

from msgspec import Struct, field

from duemq.net.retry_topics import retry_flag
from duemq.pop.pop_offsets import GroupQueue
from duemq.registry.config_file import ConfigFile, JsonObject, SavedTable
from message_store.log.commit_log import CLOCK_STEP_MS_MAX

FILE_NAME: Final = "consumerOrderInfo.json"
VIEW: Final = "pop.orderInfo"  # view that replicas request
KEPT_MS: Final = 86_400_000  # CLEAN_SPAN_FROM_LAST
OFFSETS_MAX: Final = 64  # bits of a Java long
SEPARATOR: Final = "@"


class Settled(Enum):
    """Result of an acknowledgement that does not move the consumer offset."""

    ILLEGAL = "illegal"  # its message is not in the last pop of the queue
    STALE = "stale"  # its message belongs to an earlier pop


class OrderInfo(Struct):
    """The last pop of one queue.

    Attributes:
        offsets: Queue offsets of its messages.
        visible_ms: Changed times at which messages are visible again, by queue offset.
        consumed: Number of earlier pops, by queue offset; only of messages that were popped before.
        acked: Bit set of acknowledged messages; bit n is that of `offsets[n]`.
    """

    pop_ms: int
    invisible_ms: int
    offsets: list[int]
    attempt_id: str | None = None
    last_ms: int = 0
    acked: int = 0
    visible_ms: dict[int, int] = field(default_factory=dict)
    consumed: dict[int, int] = field(default_factory=dict)

    @property
    def open(self) -> list[int]:
        """Queue offsets that are not acknowledged."""
        return [offset for index, offset in enumerate(self.offsets) if not self.acked >> index & 1]

    def free_ms(self, now_ms: int) -> int:
        """Return the time at which the block of the queue ends, without more acknowledgements.

        0: it has ended, or the clock was set back since the pop, so that its end is unknown.
        """
        if self.pop_ms > now_ms + CLOCK_STEP_MS_MAX:
            return 0
        normal_ms = self.pop_ms + self.invisible_ms
        return max((self.visible_ms.get(offset, normal_ms) for offset in self.open), default=0)

    def to_json(self) -> dict[str, object]:
        first = self.offsets[0]
        members: dict[str, object] = {"a": self.attempt_id} if self.attempt_id is not None else {}
        members["cm"] = self.acked - (1 << 64 if self.acked >> 63 else 0)
        members["i"], members["l"] = self.invisible_ms, self.last_ms
        members["o"] = [first, *(offset - first for offset in self.offsets[1:])]
        members |= {"oc": self.consumed} if self.consumed else {}
        members |= {"ot": self.visible_ms} if self.visible_ms else {}
        members["popTime"] = self.pop_ms
        return members


class OrderTable(SavedTable):
    """Order infos of all groups.

    Args:
        is_known: Returns whether a topic and a group exist; if not, their infos are removed.
    """

    def __init__(self, file: ConfigFile, is_known: Callable[[str, str], bool]) -> None:
        super().__init__(file)
        self._is_known = is_known
        self._table: dict[GroupQueue, OrderInfo] = {}

    def load(self) -> None:
        """Read consumerOrderInfo.json.

        Raises:
            CorruptStore: The file exists, but neither the file nor its backup is valid.
        """
        self._table = self._file.load(read_table) or {}

    def fit(self, end_of: Callable[[GroupQueue], int]) -> None:
        """Remove the messages after the end of their queue from its last pop."""
        for queue, info in list(self._table.items()):
            end = end_of(queue)
            offsets = [offset for offset in info.offsets if offset < end]
            if not offsets:
                self.clear(queue)
            elif len(offsets) < len(info.offsets):  # ascending: the bits of `acked` stay valid
                info.offsets, self._dirty = offsets, True

    def rewrite(self) -> None:
        """Write the file and its backup.

        Raises:
            OSError: A write failed.
        """
        for _ in ("the file", "its backup"):
            self._dirty = True
            self.persist()

    def to_json(self) -> dict[str, object]:
        table: dict[str, dict[int, object]] = {}
        for group_queue, info in self._table.items():
            queues = table.setdefault(f"{group_queue.topic}{SEPARATOR}{group_queue.group}", {})
            queues[group_queue.queue_id] = info.to_json()
        return {"table": table}

    def clean(self, now_ms: int) -> None:
        """Remove infos of topics and groups that do not exist, and those older than a day."""
        for group_queue, info in list(self._table.items()):
            old = now_ms - info.last_ms > KEPT_MS
            if old or not self._is_known(group_queue.topic, group_queue.group):
                self.clear(group_queue)

    def group_queues(self) -> Iterator[tuple[GroupQueue, OrderInfo]]:
        """Yield each queue with its last pop."""
        yield from self._table.items()

    def clear(self, queue: GroupQueue) -> None:
        """Remove the last pop of a queue, because its offset was reset."""
        self._dirty |= self._table.pop(queue, None) is not None

    def forget_topic(self, topic: str) -> None:
        """Remove the last pops of a deleted topic."""
        for queue in [queue for queue in self._table if queue.topic == topic]:
            self.clear(queue)

    # -- pops -----------------------------------------------------------------------------------

    def blocked_until(self, queue: GroupQueue, attempt_id: str | None, now_ms: int) -> int | None:
        """Return the time until which a queue is blocked, None if it is not.

        A repeated attempt is not blocked by its own pop: the client has not received the response.
        """
        info = self._table.get(queue)
        if info is None or (info.attempt_id is not None and info.attempt_id == attempt_id):
            return None
        free_ms = info.free_ms(now_ms)
        return free_ms if free_ms > now_ms else None

    def record_pop(
        self,
        queue: GroupQueue,
        offsets: Sequence[int],
        *,
        pop_ms: int,
        invisible_ms: int,
        attempt_id: str | None,
    ) -> str:
        """Block a queue; return the part of orderCountInfo that describes it."""
        assert 0 < len(offsets) <= OFFSETS_MAX
        info = OrderInfo(pop_ms, invisible_ms, list(offsets), attempt_id, pop_ms)
        before = self._table.get(queue)
        if before is not None:
            info.consumed = _consumed(before, info)
        self._table[queue] = info
        self._dirty = True
        flag = retry_flag(queue.topic)
        parts = [
            f"{flag} qo{queue.queue_id}%{position} {n}" for position, n in info.consumed.items()
        ]
        is_whole = len(info.consumed) == len(info.offsets)
        least = min(info.consumed.values()) if is_whole else 0
        return ";".join([*parts, f"{flag} {queue.queue_id} {least}"])

    def acknowledge(self, queue: GroupQueue, offset: int, pop_ms: int) -> int | Settled:
        """Acknowledge a message; return the offset that its group consumes next."""
        info = self._table.get(queue)
        if info is None:
            return Settled.ILLEGAL
        if info.pop_ms != pop_ms:
            return Settled.STALE
        if offset not in info.offsets:
            return Settled.ILLEGAL
        info.acked |= 1 << info.offsets.index(offset)
        self._dirty = True
        return info.open[0] if info.open else info.offsets[-1] + 1

    def set_visible(self, queue: GroupQueue, offset: int, pop_ms: int, visible_ms: int) -> bool:
        """Set the time at which a message is visible again; return whether the last pop has it."""
        info = self._table.get(queue)
        if info is None or info.pop_ms != pop_ms or offset not in info.offsets:
            return False
        info.visible_ms[offset] = visible_ms
        self._dirty = True
        return True

    def free_ms(self, queue: GroupQueue, now_ms: int) -> int:
        """Return the time from which a queue is not blocked; 0: it is not blocked now."""
        info = self._table.get(queue)
        return 0 if info is None else info.free_ms(now_ms)


def _consumed(before: OrderInfo, info: OrderInfo) -> dict[int, int]:
    """Return how often the messages of a pop were popped before. mergeOffsetConsumedCount"""
    if before.attempt_id is not None and before.attempt_id == info.attempt_id:
        return before.consumed
    again = set(before.offsets)
    return {
        position: before.consumed.get(position, 0) + 1
        for position in info.offsets
        if position in again
    }


def read_table(data: JsonObject) -> dict[GroupQueue, OrderInfo]:
    """Return the content of consumerOrderInfo.json.

    Raises:
        ValueError: The content is malformed.
    """
    infos: dict[GroupQueue, OrderInfo] = {}
    for key, queues in _object(data.get("table") or {}, "table").items():
        topic, separator, group = key.partition(SEPARATOR)
        if not separator:
            raise ValueError(f"table entry {key!r} is not topic@group")
        for queue_id, value in _object(queues, key).items():
            info = _read_info(_object(value, key))
            if info.offsets:
                infos[GroupQueue(group, topic, _number(queue_id))] = info
    return infos


def _read_info(data: Mapping[str, object]) -> OrderInfo:
    offsets = data.get("o") or []
    if not isinstance(offsets, list) or len(offsets) > OFFSETS_MAX:
        raise ValueError(f"o is not a list of at most {OFFSETS_MAX} offsets")
    attempt = data.get("a")
    first = _number(offsets[0]) if offsets else 0
    following = [first + _number(distance) for distance in offsets[1:]]
    return OrderInfo(
        pop_ms=_number(data.get("popTime", 0)),
        invisible_ms=_number(data.get("i") or 0),
        offsets=[first, *following] if offsets else [],
        attempt_id=attempt if isinstance(attempt, str) else None,
        last_ms=_number(data.get("l", 0)),
        acked=_number(data.get("cm", 0)) & (1 << 64) - 1,
        visible_ms=_numbers(data.get("ot") or {}, "ot"),
        consumed=_numbers(data.get("oc") or {}, "oc"),
    )


def _numbers(value: object, name: str) -> dict[int, int]:
    return {_number(key): _number(each) for key, each in _object(value, name).items()}


def _object(value: object, name: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise ValueError(f"{name} is not an object")
    return {str(key): each for key, each in value.items()}


def _number(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f"{str(value)[:32]!r} is not a number")
    return int(value)
