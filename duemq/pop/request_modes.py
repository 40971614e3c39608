"""messageRequestMode.json: whether the consumers of a group pull or pop a topic, as tools set it.

    {"messageRequestModeMap":{"T":{"G":{"consumerGroup":"G","mode":"POP","popShareQueueNum":0,...

Source: MessageRequestModeManager
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from duemq.net.codes import ResponseCode
from duemq.registry.config_file import ConfigFile, JsonObject, Saved
from message_store.errors import RequestError

FILE_NAME: Final = "messageRequestMode.json"
MODES_MAX: Final = 65_536
PULL, POP = "PULL", "POP"
SHARED_MIN, SHARED_MAX = -(1 << 31), (1 << 31) - 1  # an int of Java


@dataclass(frozen=True, slots=True)
class RequestMode:
    """How one group consumes one topic.

    Attributes:
        shared_queues: Number of members whose queues each member pops as well; at most 0: each
            member pops all queues. popShareQueueNum
    """

    mode: str
    shared_queues: int = 0

    @classmethod
    def of(cls, data: JsonObject) -> Self:
        """Return the mode that a JSON object names.

        Raises:
            ValueError: It is malformed.
        """
        mode, shared = data.get("mode", PULL), data.get("popShareQueueNum", 0)
        if mode not in (PULL, POP):
            raise ValueError(f"mode is {str(mode)[:32]!r}; PULL and POP are possible")
        if not isinstance(shared, int) or not SHARED_MIN <= shared <= SHARED_MAX:
            raise ValueError("popShareQueueNum is not a number")
        return cls(mode, shared)


class RequestModes(Saved):
    """Modes of all groups of one broker."""

    def __init__(self, file: ConfigFile, modes_max: int = MODES_MAX) -> None:
        super().__init__(file)
        self._modes_max = modes_max
        self._table: dict[tuple[str, str], RequestMode] = {}

    @classmethod
    def loaded(cls, path_of: Callable[[str], Path]) -> Self:
        """Return the modes that a store has.

        Args:
            path_of: Returns the path of a file of the store's configuration.
        Raises:
            CorruptStore: The file cannot be used.
        """
        modes = cls(ConfigFile(path_of(FILE_NAME)))
        modes._table = modes._file.load(lambda data: dict(_read(data))) or {}
        return modes

    def find(self, topic: str, group: str) -> RequestMode | None:
        """Return the mode that was set, None if none was."""
        return self._table.get((topic, group))

    async def set(self, topic: str, group: str, mode: RequestMode) -> None:
        """Set a mode, and write the file.

        Raises:
            RequestError: There are too many modes.
            OSError: The disk refused the file; the mode is set.
        """
        place = topic, group
        if place not in self._table and len(self._table) >= self._modes_max:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, f"there are {self._modes_max} modes, the maximum"
            )
        self._table[place] = mode
        self._dirty = True
        await self.save()

    def replace_by(self, data: JsonObject) -> None:
        """Take the table of a master; the file is written by the next `persist`.

        Raises:
            ValueError: It is malformed.
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
        ValueError: It is not of the form.
    """
    topics = data.get("messageRequestModeMap") or {}
    if not isinstance(topics, Mapping):
        raise ValueError("messageRequestModeMap is not an object")
    for topic, groups in topics.items():
        for group, each in groups.items() if isinstance(groups, Mapping) else ():
            if not isinstance(each, Mapping):
                raise ValueError(f"the mode of {group} on {topic} is not an object")
            yield (str(topic), str(group)), RequestMode.of(each)
