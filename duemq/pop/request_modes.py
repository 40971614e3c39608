"""Request modes in messageRequestMode.json: whether the consumers of a group pull or pop a topic.

    {"messageRequestModeMap":{"T":{"G":{"consumerGroup":"G","mode":"POP","popShareQueueNum":0,...

Administration tools set the modes.

Source: MessageRequestModeManager
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final, Self

from msgspec import Struct

from duemq.registry.config_file import ConfigFile, JsonObject, SavedTable
from duemq_common.codes import ResponseCode
from duemq_common.errors import RequestError

FILE_NAME: Final = "messageRequestMode.json"
MODES_MAX: Final = 65_536
PULL, POP = "PULL", "POP"
SHARED_MIN, SHARED_MAX = -(1 << 31), (1 << 31) - 1  # an int of Java


class RequestMode(Struct, frozen=True):
    """Request mode of one group on one topic.

    Attributes:
        mode: `PULL` or `POP`.
        shared_queues: popShareQueueNum: number of members whose queues each member pops as well; 0
            or less: each member pops all queues.
    """

    mode: str
    shared_queues: int = 0

    @classmethod
    def of(cls, data: JsonObject) -> Self:
        """Return the mode in a JSON object.

        Raises:
            ValueError: The mode is unknown, or popShareQueueNum is not an int32.
        """
        mode, shared = data.get("mode", PULL), data.get("popShareQueueNum", 0)
        if mode not in (PULL, POP):
            raise ValueError(f"mode is {str(mode)[:32]!r}; it must be PULL or POP")
        if not isinstance(shared, int) or not SHARED_MIN <= shared <= SHARED_MAX:
            raise ValueError("popShareQueueNum is not a number")
        return cls(mode, shared)


class RequestModes(SavedTable):
    """Modes of all groups of one broker."""

    def __init__(self, file: ConfigFile, modes_max: int = MODES_MAX) -> None:
        super().__init__(file)
        self._modes_max = modes_max
        self._table: dict[tuple[str, str], RequestMode] = {}

    @classmethod
    def loaded(cls, path_of: Callable[[str], Path]) -> Self:
        """Load the modes of a store.

        Args:
            path_of: Returns the path of a configuration file of the store.
        Raises:
            CorruptStore: The file is malformed.
        """
        modes = cls(ConfigFile(path_of(FILE_NAME)))
        modes._table = modes._file.load(lambda data: dict(_read(data))) or {}
        return modes

    def find(self, topic: str, group: str) -> RequestMode | None:
        """Return the mode of a group on a topic; None: no mode was set."""
        return self._table.get((topic, group))

    async def set(self, topic: str, group: str, mode: RequestMode) -> None:
        """Set a mode, and write the file.

        Raises:
            RequestError: The table is full.
            OSError: The file cannot be written; the mode is set in memory.
        """
        key = topic, group
        if key not in self._table and len(self._table) >= self._modes_max:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, f"the table is full: it has {self._modes_max} modes"
            )
        self._table[key] = mode
        self._dirty = True
        await self.save()

    def replace_by(self, data: JsonObject) -> None:
        """Replace the table by the table of a master, and write the file.

        Raises:
            ValueError: The table is malformed.
            OSError: The file cannot be written; the table is replaced in memory.
        """
        self._table = dict(_read(data))
        self._dirty = True
        self.persist()

    def to_json(self) -> dict[str, object]:
        """Return the content of the file."""
        topics: dict[str, dict[str, object]] = {}
        for (topic, group), mode in self._table.items():
            topics.setdefault(topic, {})[group] = {
                "consumerGroup": group,
                "mode": mode.mode,
                "popShareQueueNum": mode.shared_queues,
                "topic": topic,
            }
        return {"messageRequestModeMap": topics}


def _read(data: JsonObject) -> Iterator[tuple[tuple[str, str], RequestMode]]:
    """Yield the modes of a file.

    Raises:
        ValueError: The content is malformed.
    """
    topics = data.get("messageRequestModeMap") or {}
    if not isinstance(topics, Mapping):
        raise ValueError("messageRequestModeMap is not an object")
    for topic, groups in topics.items():
        for group, each in groups.items() if isinstance(groups, Mapping) else ():
            if not isinstance(each, Mapping):
                raise ValueError(f"the mode of {group} on {topic} is not an object")
            yield (str(topic), str(group)), RequestMode.of(each)
