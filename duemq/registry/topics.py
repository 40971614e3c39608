"""Topic manager: topics in topics.json and in the store's routing columns.

    17, 18, 215, first send, first heartbeat
        -> plan (new table, new version) -> topics.json -> table and routing -> name servers

A change is on disk before it becomes visible, and is announced to the name servers before the
response to its request; the response does not depend on the success of the announcement. Changes
are made one at a time.
Source: TopicConfigManager
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial

from delayed_delivery.plugin import SystemTopic
from duemq.configuration.config import BrokerConfig
from duemq.registry import topic_config
from duemq.registry.config_file import ConfigFile, JsonObject, sound_rows
from duemq.registry.default_topics import at_least, default_topics
from duemq.registry.internal_topics import is_internal
from duemq.registry.stored_table import StoredTable
from duemq.registry.table_file import TableFile
from duemq.registry.table_journal import TableJournal
from duemq.registry.topic_config import TopicConfig
from duemq_common.clock import Clock
from duemq_common.codes import ResponseCode
from duemq_common.data_version import DataVersion
from duemq_common.errors import RequestError
from duemq_common.text import GROUP_BYTES_MAX, TOPIC_BYTES_MAX, name_fault
from duemq_common.topics import (
    DLQ_PREFIX,
    PERM_BOTH,
    PERM_INHERIT,
    RETRY_PREFIX,
    SYSTEM_PREFIX,
    TEMPLATE_TOPIC,
)
from message_store.queues.topic_table import TopicTable

log = logging.getLogger(__name__)
SHOWN_MAX = 8  # topics in one log line
_FILE_MEMBERS = frozenset({"dataVersion", "topicConfigTable"})


def _rows(table: Mapping[str, object]) -> dict[str, TopicConfig]:
    return {str(name): TopicConfig.from_json(value, str(name)) for name, value in table.items()}


TopicListener = Callable[[Sequence[TopicConfig]], Awaitable[None]]
"""Called with created or changed topics; returns after the announcement to the name servers."""


class TopicManager(StoredTable[TopicConfig]):
    """Manager of the topics of one broker.

    Args:
        config: Names of cluster and broker, settings of automatic creation.
        system_topics: Topics of plugins with their minimum number of queues.
        journal: Journal of changes in the log.
    Attributes:
        changed: Awaited after topics were created or changed; see `TopicListener`.
        removed: Called with the name of a deleted topic.
        resized: Called with the name of a topic that is new, or has another number of queues.
    """

    def __init__(
        self,
        config: BrokerConfig,
        routing: TopicTable,
        file: ConfigFile,
        clock: Clock,
        *,
        system_topics: Sequence[SystemTopic] = (),
        journal: TableJournal[TopicConfig],
    ) -> None:
        super().__init__(
            TableFile(file, "topicConfigTable"),
            journal,
            clock,
            ResponseCode.SERVICE_NOT_AVAILABLE,
        )
        self._config, self._routing = config, routing
        self._plugin_topics = tuple(system_topics)
        self._defaults = default_topics(config, system_topics)
        self._to_create: dict[str, TopicConfig] = {}  # topics to create, by name
        self._removals: dict[str, asyncio.Event] = {}  # ends of `removal`, by name
        self.changed: TopicListener | None = None
        self.removed: Callable[[str], None] | None = None
        self.resized: Callable[[str], None] | None = None

    # -- file ---------------------------------------------------------------------------------

    def load(self) -> None:
        """Load topics.json, apply the journal, add the default topics, set the routing.

        The store must be open: if the file is missing, topics are derived from the store's queues.

        Raises:
            CorruptStore: Neither the file nor its backup can be used.
        """
        self.version = DataVersion(0, self._clock.now_ms())
        table = dict[str, TopicConfig]()
        content = self._file.load(self._decode)
        if content is not None:
            self.version, self._extra, table = content
        replayed = self._journal.replay(self.version)
        if content is None and not (replayed and replayed.is_whole):
            table = self._derive_topics()
        if replayed is not None:
            table, self.version = replayed.applied_to(table), replayed.version
        self._dirty = content is None or replayed is not None or self._file.has_changes
        table |= {name: topic for name, topic in self._defaults.items() if name not in table}
        if not self._config.auto_create_topic:
            table.pop(TEMPLATE_TOPIC, None)
        for planned in self._plugin_topics:
            table[planned.name] = at_least(table[planned.name], planned.queues)
        for topic in table.values():
            self._install(topic)
        topic_config.warn_unsupported(table.values())

    def replace_by(self, data: JsonObject) -> None:
        """Replace the table by that of a master, in the form of topics.json.

        Raises:
            ValueError: The table is invalid.
        """
        sound = partial(sound_rows, read=TopicConfig.from_json, before=self._table)
        version, self._extra, table = self._decode(data, sound)
        table |= {name: topic for name, topic in self._defaults.items() if name not in table}
        for name in self._table.keys() - table.keys():
            del self._table[name]
            self._routing.set_routing(name, write_queues=0, read_queues=0, perm=0, closed=True)
        for topic in table.values():
            if self._table.get(topic.name) != topic:
                self._install(topic)
        self.version, self._dirty = version, True

    @staticmethod
    def _decode(
        data: JsonObject, rows: Callable[[Mapping[str, object]], dict[str, TopicConfig]] = _rows
    ) -> tuple[DataVersion, dict[str, object], dict[str, TopicConfig]]:
        table = data.get("topicConfigTable") or {}
        if not isinstance(table, Mapping):
            raise ValueError("topicConfigTable is not an object")
        return (
            DataVersion.from_json(data.get("dataVersion")),
            {key: value for key, value in data.items() if key not in _FILE_MEMBERS},
            rows(table),
        )

    def _derive_topics(self) -> dict[str, TopicConfig]:
        """Return topics derived from the queues in the store, for a missing file."""
        counts = {name: n for name, n in _queue_counts(self._routing) if name not in self._defaults}
        if counts:
            log.warning(
                "%s is missing, but the store has queues of %d topics: they are created again with "
                "these queues and perm 6. Check them, or restore the file and "
                "restart: %s",
                self._file.path,
                len(counts),
                counts,
            )
        return {
            name: TopicConfig(name=name, read_queues=count, write_queues=count)
            for name, count in counts.items()
        }

    # -- queries ------------------------------------------------------------------------------

    def find(self, name: str) -> TopicConfig | None:
        """Return a topic, or None."""
        return self._table.get(name)

    def is_system(self, name: str) -> bool:
        """Return whether a topic is protected from requests 17 and 215."""
        return (
            is_internal(name)
            or name in topic_config.SYSTEM_TOPICS
            or name.startswith(SYSTEM_PREFIX)
            or name in self._defaults
        )

    def system_names(self) -> list[str]:
        """Return the names of the system topics, sorted."""
        return sorted(topic_config.SYSTEM_TOPICS | self._defaults.keys())

    # -- changes ------------------------------------------------------------------------------

    async def create_for_send(
        self,
        name: str,
        *,
        default_topic: str,
        default_queues: int,
        unit_mode: bool = False,
        announce: bool = True,
    ) -> TopicConfig | None:
        """Return the topic of a send, created from its template if it is new.

        Args:
            default_topic, default_queues: `defaultTopic`, `defaultTopicQueueNums` of the request.
            announce: Whether to announce it to the name servers; False: the caller does.
        Returns:
            None if the topic does not exist and may not be created (response code 17).
        Raises:
            RequestError: The name is invalid, or the topic cannot be stored.
        Source: TopicConfigManager.createTopicInSendMessageMethod, AbstractSendMessageProcessor
        """
        topic = self._table.get(name)
        if topic is not None:
            return topic
        planned = self._plan_creation(name, default_topic, default_queues, unit_mode)
        return None if planned is None else await self._create(planned, announce=announce)

    def _plan_creation(
        self, name: str, default_topic: str, default_queues: int, unit_mode: bool
    ) -> TopicConfig | None:
        is_retry = name.startswith(RETRY_PREFIX)
        unit_flag = topic_config.UNIT_SUB_FLAG if is_retry else topic_config.UNIT_FLAG
        flag = unit_flag if unit_mode else 0
        template = self._table.get(default_topic)
        if template is not None and template.perm & PERM_INHERIT:
            queues = max(min(default_queues, template.write_queues), 0)
            return TopicConfig(
                name=name,
                read_queues=queues,
                write_queues=queues,
                perm=template.perm & ~PERM_INHERIT,
                filter_type=template.filter_type,
                sys_flag=flag,
            )
        if is_retry:
            return TopicConfig(name=name, read_queues=1, write_queues=1, sys_flag=flag)
        return None

    async def ensure(self, name: str, *, queues: int, perm: int = PERM_BOTH) -> TopicConfig:
        """Return the topic, created and announced if it is new.

        Raises:
            RequestError: The name is invalid, or the topic cannot be stored.
        Source: TopicConfigManager.createTopicInSendMessageBackMethod
        """
        return self._table.get(name) or await self._create(
            TopicConfig(name=name, read_queues=queues, write_queues=queues, perm=perm)
        )

    async def ensure_all(self, topics: Sequence[TopicConfig]) -> None:
        """Create the missing topics in one write.

        Raises:
            RequestError: A name is invalid, or the topics cannot be stored; none was created.
        """
        for topic in topics:
            if topic.name not in self._table:
                _check(topic)
        await self._wait_removed([topic.name for topic in topics])
        async with self._changing:
            new = [topic for topic in topics if topic.name not in self._table]
            if not new:
                return
            await self._change(new)
        shown = ", ".join(topic.name for topic in new[:SHOWN_MAX])
        log.info("%d topics created: %s%s", len(new), shown, ", ..." * (len(new) > SHOWN_MAX))
        await self.announce(new)

    async def _create(self, planned: TopicConfig, *, announce: bool = True) -> TopicConfig:
        """Create a topic, in one write with the topics of concurrent calls."""
        name = planned.name
        _check(planned)
        await self._wait_removed([name])
        self._to_create.setdefault(name, planned)
        try:
            async with self._changing:
                if name not in self._table:
                    await self._change(self._batch_with(planned))
        finally:
            if self._to_create.get(name) is planned:
                del self._to_create[name]
        if (topic := self._table[name]) is not planned:
            return topic
        log.info("topic %s created: %d queues", planned.name, planned.write_queues)
        if announce:
            await self.announce([planned])
        return planned

    def _batch_with(self, first: TopicConfig) -> list[TopicConfig]:
        """Return topics to create in one write, within the limit of the table."""
        others = [topic for name, topic in self._to_create.items() if name != first.name]
        room = max(self._config.topics_max - len(self._table), 1)
        return [first, *(topic for topic in others if topic.name not in self._table)][:room]

    async def update(self, topics: Sequence[TopicConfig]) -> None:
        """Create or replace topics; `attributes` are changes such as {"+message.type": "DELAY"}.

        Topics that would not change are ignored.

        Raises:
            RequestError: A name or value is invalid, or the topics cannot be stored.
        Source: TopicConfigManager.updateTopicConfig
        """
        for topic in topics:
            self._check_update(topic)
        await self._wait_removed([topic.name for topic in topics])
        async with self._changing:
            changes = [new for topic in topics if (new := self._altered(topic)) is not None]
            if changes:
                await self._change(changes)
        for topic in changes:
            log.info("topic %s set: %s", topic.name, topic.to_json())
        if changes:
            await self.announce(changes)
            await self._journal.confirm()

    def _check_update(self, topic: TopicConfig) -> None:
        _check(topic)
        if self.is_system(topic.name):
            text = f"The topic[{topic.name}] is conflict with system topic."
            raise RequestError(ResponseCode.INVALID_PARAMETER, text)

    def _altered(self, topic: TopicConfig) -> TopicConfig | None:
        old = self._table.get(topic.name)
        try:
            attributes = topic_config.alter_attributes(
                old.attributes if old else None, topic.attributes
            )
        except ValueError as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"topic {topic.name}: {error}") from error
        new = topic.replace(attributes=attributes, extra=old.extra if old else topic.extra)
        return None if new == old else new

    @asynccontextmanager
    async def removal(self, name: str) -> AsyncIterator[None]:
        """Delete a topic; the caller removes its queues while the block is open.

        A topic with this name is created again only after the block: its first messages would
        otherwise be removed with the queues of the deleted one.

        Raises:
            RequestError: As `delete`.
        """
        await self._wait_removed([name])
        ended = self._removals[name] = asyncio.Event()
        try:
            await self.delete(name)
            yield
        finally:
            del self._removals[name]
            ended.set()

    async def _wait_removed(self, names: Sequence[str]) -> None:
        """Wait until none of these names is in removal."""
        while True:
            ends = [self._removals[name] for name in names if name in self._removals]
            if not ends:
                return
            await ends[0].wait()

    async def delete(self, name: str) -> bool:
        """Delete a topic; return whether it existed. The caller removes its queues.

        Raises:
            RequestError: It is a system topic, or topics.json cannot be written.
        Source: TopicConfigManager.deleteTopicConfig
        """
        if not name.strip():
            raise RequestError(ResponseCode.INVALID_PARAMETER, "The specified topic is blank.")
        if self.is_system(name):
            text = f"The topic[{name}] is conflict with system topic."
            raise RequestError(ResponseCode.INVALID_PARAMETER, text)
        async with self._changing:
            if name not in self._table:
                return False
            await self._save({name: None})
            del self._table[name]
            self._routing.set_routing(name, write_queues=0, read_queues=0, perm=0)
        if self.removed is not None:
            self.removed(name)
        log.info("topic %s deleted", name)
        await self._journal.confirm()
        return True

    async def _change(self, topics: Sequence[TopicConfig]) -> None:
        """Store `topics` in file, table and routing, in this order."""
        changed = {topic.name: topic for topic in topics}
        new = sum(name not in self._table for name in changed)
        if new and len(self._table) + new > self._config.topics_max:
            text = (
                f"there are {len(self._table)} topics; the limit is topicsMax="
                f"{self._config.topics_max}. Delete some, or set a higher limit"
            )
            raise RequestError(ResponseCode.SYSTEM_ERROR, text)
        await self._save(changed)
        for topic in topics:
            old = self._table.get(topic.name)
            self._install(topic)
            is_resized = old is None or old.read_queues != topic.read_queues
            if is_resized and self.resized is not None:
                self.resized(topic.name)

    def _install(self, topic: TopicConfig) -> None:
        self._table[topic.name] = topic
        self._routing.set_routing(
            topic.name,
            write_queues=topic.write_queues,
            read_queues=topic.read_queues,
            perm=topic.perm,
            closed=topic.closed,
        )

    async def announce(self, topics: Sequence[TopicConfig]) -> None:
        """Announce created or changed topics to the name servers."""
        if self.changed is not None:
            await self.changed(topics)


def _check(topic: TopicConfig) -> None:
    """Check a topic before it is stored: a broker does not start with an invalid one in its file.

    Raises:
        RequestError: The name or a value is invalid: INVALID_PARAMETER.
    """
    check_name(topic.name)
    if fault := topic.fault():
        raise RequestError(ResponseCode.INVALID_PARAMETER, f"topic {topic.name}: {fault}")


def check_name(name: str) -> None:
    """Check the name of a new topic.

    Raises:
        RequestError: The name is invalid: INVALID_PARAMETER.
    Source: TopicValidator.validateTopic
    """
    derived = name.startswith((RETRY_PREFIX, DLQ_PREFIX))
    fault = name_fault(name, bytes_max=GROUP_BYTES_MAX if derived else TOPIC_BYTES_MAX)
    if fault:
        text = f"The specified topic is illegal: {fault}"
        raise RequestError(ResponseCode.INVALID_PARAMETER, text)


def _queue_counts(routing: TopicTable) -> Iterator[tuple[str, int]]:
    """Yield (topic, highest queue id + 1) of each topic with queues in the store."""
    lengths = routing.arrays.topics["slots_len"]
    for index in range(len(routing)):
        ids = [n for n in range(int(lengths[index])) if routing.slot(index, n) >= 0]
        if ids:
            yield routing.name(index), max(ids) + 1
