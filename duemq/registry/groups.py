"""Consumer groups and their configuration, stored in subscriptionGroup.json.

Explicit changes (200, 225, 207) are on disk before the response. Groups that are created
automatically have only defaults; they are written by the next `persist`.
Source: SubscriptionGroupManager, SubscriptionGroupConfig
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
from msgspec import Struct, field

from duemq.registry.config_file import ConfigFile, JsonObject, sound_rows
from duemq.registry.stored_table import StoredTable
from duemq.registry.table_file import TableFile
from duemq.registry.table_journal import TableJournal
from duemq.registry.topic_config import GROUP_ATTRIBUTES, alter_attributes
from duemq_common.clock import Clock
from duemq_common.codes import ResponseCode
from duemq_common.data_version import DataVersion, boolean, integer
from duemq_common.errors import RequestError
from duemq_common.text import GROUP_BYTES_MAX, name_fault
from duemq_common.topics import INTERNAL_GROUP_PREFIX, TRANSACTION_GROUP
from message_store.queues.topic_table import QUEUES_MAX

log = logging.getLogger(__name__)
GROUPS_MAX = 131_072
CREATED_BYTES_MAX = 120  # of the name of a new group, as from 5.4 on
DEFAULT_GROUPS = (
    "TOOLS_CONSUMER",
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
    TRANSACTION_GROUP,
)
_FILE_MEMBERS = frozenset({"dataVersion", "forbiddenTable", "subscriptionGroupTable"})
_MEMBERS = frozenset(
    {
        "attributes",
        "brokerId",
        "consumeBroadcastEnable",
        "consumeEnable",
        "consumeFromMinEnable",
        "consumeMessageOrderly",
        "consumeTimeoutMinute",
        "groupName",
        "groupRetryPolicy",
        "groupSysFlag",
        "notifyConsumerIdsChangedEnable",
        "retryMaxTimes",
        "retryQueueNums",
        "whichBrokerWhenConsumeSlowly",
    }
)


class GroupConfig(Struct, frozen=True, kw_only=True):
    """Configuration of a consumer group.

    Attributes:
        retry_queues: Number of queues of the retry topic; 0 or less: no retries.
        broker_id, slow_broker_id: Id of the broker to read from, normally and at a large lag.
        extra: Unknown JSON members, written back unchanged.
    """

    name: str
    consume_enable: bool = True
    from_min_enable: bool = True
    broadcast_enable: bool = True
    orderly: bool = False
    retry_queues: int = 1
    retry_times_max: int = 16
    retry_policy: Mapping[str, object] = field(default_factory=lambda: {"type": "CUSTOMIZED"})
    broker_id: int = 0
    slow_broker_id: int = 1
    notify_changed: bool = True
    sys_flag: int = 0
    timeout_minutes: int = 15
    attributes: Mapping[str, str] = field(default_factory=dict)
    extra: Mapping[str, object] = field(default_factory=dict)

    def replace(self, **changes: Any) -> GroupConfig:
        """Return a copy with other values."""
        return msgspec.structs.replace(self, **changes)

    def to_json(self) -> dict[str, object]:
        """Return the object as 5.3.3 writes it, names sorted."""
        members = {
            **self.extra,
            "attributes": dict(self.attributes),
            "brokerId": self.broker_id,
            "consumeBroadcastEnable": self.broadcast_enable,
            "consumeEnable": self.consume_enable,
            "consumeFromMinEnable": self.from_min_enable,
            "consumeMessageOrderly": self.orderly,
            "consumeTimeoutMinute": self.timeout_minutes,
            "groupName": self.name,
            "groupRetryPolicy": dict(self.retry_policy),
            "groupSysFlag": self.sys_flag,
            "notifyConsumerIdsChangedEnable": self.notify_changed,
            "retryMaxTimes": self.retry_times_max,
            "retryQueueNums": self.retry_queues,
            "whichBrokerWhenConsumeSlowly": self.slow_broker_id,
        }
        return dict(sorted(members.items()))

    @classmethod
    def from_json(cls, data: object, name: str = "") -> GroupConfig:
        """Decode the JSON form of any version.

        Args:
            name: Key of the object in its table; used if the object has no name.
        Raises:
            ValueError: The object is invalid.
        """
        if not isinstance(data, Mapping):
            raise ValueError(f"group {name!r} is {type(data).__name__}, not an object")
        attributes, policy = data.get("attributes") or {}, data.get("groupRetryPolicy")
        policy = {"type": "CUSTOMIZED"} if policy is None else policy
        if not isinstance(attributes, Mapping) or not isinstance(policy, Mapping):
            raise ValueError(f"group {name!r}: attributes or groupRetryPolicy is not an object")
        return cls(
            name=str(data.get("groupName") or name),
            consume_enable=boolean(data, "consumeEnable", True),
            from_min_enable=boolean(data, "consumeFromMinEnable", True),
            broadcast_enable=boolean(data, "consumeBroadcastEnable", True),
            orderly=boolean(data, "consumeMessageOrderly", False),
            retry_queues=integer(data, "retryQueueNums", 1),
            retry_times_max=integer(data, "retryMaxTimes", 16),
            retry_policy=policy,
            broker_id=integer(data, "brokerId", 0),
            slow_broker_id=integer(data, "whichBrokerWhenConsumeSlowly", 1),
            notify_changed=boolean(data, "notifyConsumerIdsChangedEnable", True),
            sys_flag=integer(data, "groupSysFlag", 0),
            timeout_minutes=integer(data, "consumeTimeoutMinute", 15),
            attributes={str(key): str(value) for key, value in attributes.items()},
            extra={key: value for key, value in data.items() if key not in _MEMBERS},
        )


def _rows(table: Mapping[str, object]) -> dict[str, GroupConfig]:
    return {str(name): GroupConfig.from_json(value, str(name)) for name, value in table.items()}


class GroupManager(StoredTable[GroupConfig]):
    """Manager of the consumer groups of one broker.

    Args:
        auto_create: Whether the first use of an unknown group creates it.
        groups_max: Maximum number of groups.
        journal: Journal of changes in the log.
    """

    def __init__(
        self,
        file: ConfigFile,
        clock: Clock,
        *,
        auto_create: bool = True,
        groups_max: int = GROUPS_MAX,
        journal: TableJournal[GroupConfig],
    ) -> None:
        super().__init__(
            TableFile(file, "subscriptionGroupTable"),
            journal,
            clock,
            ResponseCode.SYSTEM_ERROR,
        )
        self._groups_max = groups_max
        self._extra = {"forbiddenTable": {}}
        self.auto_create = auto_create

    # -- file ---------------------------------------------------------------------------------

    def load(self) -> None:
        """Load subscriptionGroup.json, apply the journal, add the default groups.

        Raises:
            CorruptStore: Neither the file nor its backup can be used.
        """
        self.version = DataVersion(0, self._clock.now_ms())
        content = self._file.load(self._decode)
        self._dirty = content is None
        if content is not None:
            version, self._extra, self._table = content
            self.version = version or self.version
            self._dirty = self._file.has_changes
        replayed = self._journal.replay(self.version)
        if replayed is not None:
            self._table, self.version = replayed.applied_to(self._table), replayed.version
            self._dirty = True
        for name in DEFAULT_GROUPS:
            self._table.setdefault(name, GroupConfig(name=name))

    def replace_by(self, data: JsonObject) -> None:
        """Replace the table by that of a master, in the form of subscriptionGroup.json.

        Raises:
            ValueError: The table is invalid.
        """
        sound = partial(sound_rows, read=GroupConfig.from_json, before=self._table)
        version, self._extra, self._table = self._decode(data, sound)
        self.version = version or self.version
        for name in DEFAULT_GROUPS:
            self._table.setdefault(name, GroupConfig(name=name))
        self._dirty = True

    @staticmethod
    def _decode(
        data: JsonObject, rows: Callable[[Mapping[str, object]], dict[str, GroupConfig]] = _rows
    ) -> tuple[DataVersion | None, dict[str, object], dict[str, GroupConfig]]:
        table = data.get("subscriptionGroupTable") or {}
        forbidden = data.get("forbiddenTable") or {}
        if not isinstance(table, Mapping) or not isinstance(forbidden, Mapping):
            raise ValueError("subscriptionGroupTable or forbiddenTable is not an object")
        extra = {key: value for key, value in data.items() if key not in _FILE_MEMBERS}
        return (
            DataVersion.from_json(data["dataVersion"]) if "dataVersion" in data else None,
            extra | {"forbiddenTable": dict(forbidden)},
            rows(table),
        )

    # -- queries ------------------------------------------------------------------------------

    def find(self, name: str) -> GroupConfig | None:
        """Return an existing group, or None."""
        return self._table.get(name)

    def find_or_create(self, name: str) -> GroupConfig | None:
        """Return a group, created if necessary and allowed; None if it is not allowed.

        Source: SubscriptionGroupManager.findSubscriptionGroupConfig
        """
        group = self._table.get(name)
        if group is not None:
            return group
        if not (self.auto_create or name.startswith(INTERNAL_GROUP_PREFIX)):
            return None
        if name_fault(name, bytes_max=CREATED_BYTES_MAX) or len(self._table) >= self._groups_max:
            return None
        created = GroupConfig(name=name)
        version = self._journal.version_after(self.version, self._clock.now_ms())
        try:
            self._journal.check()
            self._journal.append({name: created}, version)
        except RequestError:
            return created  # stored by a later use
        self._table[name], self.version = created, version
        self._unsaved.add(name)
        self._dirty = True
        log.info("group %s created at its first use", name)
        return created

    # -- changes ------------------------------------------------------------------------------

    async def update(self, groups: Sequence[GroupConfig]) -> None:
        """Create or replace groups; their `attributes` are changes such as {"+key": "value"}.

        Raises:
            RequestError: A name or value is invalid, or the groups cannot be stored.
        Source: SubscriptionGroupManager.updateSubscriptionGroupConfig
        """
        for group in groups:
            if fault := self._fault_of(group):
                text = f"The specified group is illegal: {fault}"
                raise RequestError(ResponseCode.INVALID_PARAMETER, text)
        async with self._changing:
            changed = {group.name: self._altered(group) for group in groups}
            new = sum(name not in self._table for name in changed)
            if new and len(self._table) + new > self._groups_max:
                text = (
                    f"there are {len(self._table)} groups; the limit is consumerGroupsMax="
                    f"{self._groups_max}. Delete some, or set a higher limit"
                )
                raise RequestError(ResponseCode.SYSTEM_ERROR, text)
            await self._save(changed)
            self._table |= changed
        log.info("groups set: %.2000s", [group.name for group in groups])
        await self._journal.confirm()

    def _fault_of(self, group: GroupConfig) -> str | None:
        """Return the reason why a group cannot be stored, or None."""
        most = GROUP_BYTES_MAX if group.name in self._table else CREATED_BYTES_MAX
        if group.retry_queues > QUEUES_MAX:
            return f"retryQueueNums={group.retry_queues}; a topic has at most {QUEUES_MAX} queues"
        return name_fault(group.name, bytes_max=most)

    def _altered(self, group: GroupConfig) -> GroupConfig:
        old = self._table.get(group.name)
        try:
            attributes = alter_attributes(
                old.attributes if old else None, group.attributes, supported=GROUP_ATTRIBUTES
            )
        except ValueError as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"group {group.name}: {error}") from error
        return group.replace(
            attributes=attributes, extra={**(old.extra if old else {}), **group.extra}
        )

    async def delete(self, name: str) -> bool:
        """Delete a group; return whether it existed.

        Raises:
            RequestError: The file cannot be written.
        Source: SubscriptionGroupManager.deleteSubscriptionGroupConfig
        """
        async with self._changing:
            if name not in self._table:
                return False
            await self._save({name: None})
            self._table.pop(name, None)
        log.info("group %s deleted", name)
        await self._journal.confirm()
        return True
