"""Configuration: Java properties text becomes frozen dataclasses, checked once.

    text --parse_properties--> Properties --from_properties--> StoreConfig, BrokerConfig, ...

A section is a frozen dataclass whose fields are made by `option`: Apache's key, what it means,
its unit, its limits, whether a running broker takes a new value (`live`) and whether a request may
change it (`wire`). A component gets its own section and nothing else; a reload hands it a new one.
"""

from __future__ import annotations

import dataclasses
import os
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from message_store.config_text import Properties as Properties
from message_store.config_text import parse_properties as parse_properties
from message_store.config_text import read_properties as read_properties
from message_store.errors import ConfigError

INT_MAX = (1 << 31) - 1
LONG_MAX = (1 << 63) - 1
PULL_BYTES_MAX = (16 << 20) - (64 << 10)  # a frame of 16 MiB, without room for its header

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Option:
    """What is known about one configuration key."""

    name: str  # of the dataclass field
    key: str  # Apache's name
    doc: str
    unit: str
    live: bool
    wire: bool  # a request of the network may change it
    default: Any
    kind: type  # int, float, bool or str
    minimum: float | None
    maximum: float | None
    choices: tuple[str, ...]
    own: bool  # True: a key of DueMQ, unknown to Apache
    section: str  # class name


def option(
    default: Any,
    *,
    key: str,
    doc: str,
    unit: str = "",
    live: bool = False,
    wire: bool = False,
    minimum: float | None = None,
    maximum: float | None = None,
    choices: tuple[str, ...] = (),
    own: bool = False,
) -> Any:
    """Declare one configuration field.

    Args:
        default: The value when the key is absent.
        key: Apache's name of it (or ours, with `own`).
        doc: One sentence for the reference.
        unit: `ms`, `bytes`, `%`, ...
        live: A running broker takes a new value.
        wire: A request (25, 318) may change it. Never for a key that names a path, an address, a
            command or a class: the network is not trusted with those.
        minimum, maximum: Inclusive limits of a number; an int has those of its Java type anyway.
        choices: The only words allowed.
    """
    metadata = {
        "key": key,
        "doc": doc,
        "unit": unit,
        "live": live,
        "wire": wire,
        "minimum": minimum,
        "maximum": maximum,
        "choices": choices,
        "own": own,
    }
    return field(default=default, metadata=metadata)


def options(section: type) -> list[Option]:
    """Return the keys of a configuration class, in the order they are declared."""
    hints = typing.get_type_hints(section)
    return [
        Option(
            name=item.name,
            default=item.default,
            kind=hints[item.name],
            section=section.__name__,
            **item.metadata,
        )
        for item in dataclasses.fields(section)
        if "key" in item.metadata
    ]


def from_properties(section: type[T], properties: Mapping[str, str]) -> T:
    """Build a configuration section from properties; absent keys keep their default.

    Raises:
        ConfigError: A value is of the wrong kind or out of range.
    """
    source = properties.source if isinstance(properties, Properties) else lambda key: ""
    values = {
        item.name: parse_value(item, properties[item.key], source(item.key))
        for item in options(section)
        if item.key in properties
    }
    return section(**values)


def to_properties(config: Any) -> dict[str, str]:
    """Return a section as Apache prints it: key to text, every key, in declaration order."""
    return {item.key: value_text(getattr(config, item.name)) for item in options(type(config))}


def with_live(old: T, new: T) -> tuple[T, list[str]]:
    """Return `old` with the live values of `new`, and the keys whose change needs a restart."""
    live, waiting = {}, []
    for item in options(type(old)):
        value = getattr(new, item.name)
        if value == getattr(old, item.name):
            continue
        if item.live:
            live[item.name] = value
        else:
            waiting.append(item.key)
    return dataclasses.replace(old, **live), waiting  # type: ignore[type-var]


def value_text(value: Any) -> str:
    """Return a value the way a properties file holds it."""
    return ("true" if value else "false") if isinstance(value, bool) else str(value)


def parse_value(item: Option, text: str, source: str = "") -> Any:
    """Return the value of `text` for the key `item`.

    Raises:
        ConfigError: It is of the wrong kind or out of range.
    """
    text = text.strip()
    if item.kind is bool:
        if text.lower() not in ("true", "false"):
            raise ConfigError(item.key, text, "must be true or false", source=source)
        return text.lower() == "true"
    if item.kind is str:
        return _parse_choice(item, text, source)
    return _parse_number(item, text, source)


def _parse_choice(item: Option, text: str, source: str) -> str:
    if item.choices and text not in item.choices:
        why = f"must be one of {', '.join(item.choices)}"
        raise ConfigError(item.key, text, why, source=source)
    return text


def _parse_number(item: Option, text: str, source: str) -> int | float:
    try:
        if len(text) > 40:
            raise ValueError
        value = item.kind(text.replace("_", "x"))
    except ValueError:
        what = "a whole number" if item.kind is int else "a number"
        raise ConfigError(item.key, text, f"must be {what}{_of(item)}", source=source) from None
    low = item.minimum if item.minimum is not None else -INT_MAX - 1
    high = item.maximum if item.maximum is not None else INT_MAX
    if not low <= value <= high:
        why = f"must be from {low} to {high}{_of(item)}"
        raise ConfigError(item.key, text, why, source=source)
    number: int | float = value
    return number


def _of(item: Option) -> str:
    return f" ({item.unit})" if item.unit else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig:
    """Where the store lies, how it is cut into files, when it is flushed and cleaned.

    File sizes are part of the format: a directory must be opened with those it was made with.
    Source: MessageStoreConfig.
    """

    root_text: str = option(
        "~/store", key="storePathRootDir", doc="Directory of the store.", unit="path"
    )
    commitlog_text: str = option(
        "",
        key="storePathCommitLog",
        doc="Directory of the commit log; empty: `commitlog` below the root.",
        unit="path",
    )
    commitlog_file_bytes: int = option(
        1 << 30,
        key="mappedFileSizeCommitLog",
        doc="Size of one commit log file.",
        unit="bytes",
        minimum=4_096,
    )
    queue_file_bytes: int = option(
        6_000_000,
        key="mappedFileSizeConsumeQueue",
        doc="Size of one consume queue file, rounded up to whole 20-byte units.",
        unit="bytes",
        minimum=20,
    )
    message_bytes_max: int = option(
        4 << 20,
        key="maxMessageSize",
        doc="Longest message body that is accepted.",
        unit="bytes",
        minimum=1,
        maximum=256 << 20,
        live=True,
        wire=True,
    )
    flush_disk_type: str = option(
        "ASYNC_FLUSH",
        key="flushDiskType",
        doc="SYNC_FLUSH: a message is on the disk before its send is answered, and before "
        "consumers get it.",
        choices=("ASYNC_FLUSH", "SYNC_FLUSH"),
    )
    flush_commitlog_interval_ms: int = option(
        500,
        key="flushIntervalCommitLog",
        doc="Pause between two flushes of the commit log (ASYNC_FLUSH).",
        unit="ms",
        minimum=1,
    )
    flush_queue_interval_ms: int = option(
        1_000,
        key="flushIntervalConsumeQueue",
        doc="Pause between two flushes of the consume queues.",
        unit="ms",
        minimum=1,
        live=True,
        wire=True,
    )
    sync_flush_timeout_ms: int = option(
        5_000,
        key="syncFlushTimeout",
        doc="Longest wait of a SYNC_FLUSH send; then it is answered FLUSH_DISK_TIMEOUT.",
        unit="ms",
        minimum=1,
        live=True,
        wire=True,
    )
    index_enable: bool = option(
        True, key="messageIndexEnable", doc="Keep the index of message keys and unique ids."
    )
    index_slots_max: int = option(
        5_000_000,
        key="maxHashSlotNum",
        doc="Hash slots of one index file.",
        unit="slots",
        minimum=1,
    )
    index_entries_max: int = option(
        20_000_000,
        key="maxIndexNum",
        doc="Entries of one index file.",
        unit="entries",
        minimum=2,
    )
    delete_when_hours: str = option(
        "04",
        key="deleteWhen",
        doc="Hours of the day, separated by `;`, at which expired files are deleted.",
        unit="hour",
        live=True,
        wire=True,
    )
    file_reserved_hours: int = option(
        72,
        key="fileReservedTime",
        doc="Age after which a commit log file may be deleted, unless a pending message needs it.",
        unit="hours",
        minimum=0,
        live=True,
        wire=True,
    )
    disk_used_percent_max: int = option(
        75,
        key="diskMaxUsedSpaceRatio",
        doc="Disk usage from which expired files are deleted at any hour.",
        unit="%",
        minimum=1,
        maximum=100,
        live=True,
        wire=True,
    )
    disk_forcible_percent: int = option(
        85,
        key="diskSpaceCleanForciblyRatio",
        doc="Disk usage from which the oldest files go although they have not expired.",
        unit="%",
        minimum=1,
        maximum=100,
        live=True,
        wire=True,
    )
    disk_warning_percent: int = option(
        90,
        key="diskSpaceWarningLevelRatio",
        doc="Disk usage from which writes are refused; reads go on.",
        unit="%",
        minimum=1,
        maximum=100,
        live=True,
        wire=True,
    )
    clean_forcibly: bool = option(
        True,
        key="cleanFileForciblyEnable",
        doc="Allow deletion of files that have not expired when the disk is nearly full.",
        live=True,
        wire=True,
    )
    delete_files_max: int = option(
        10,
        key="deleteFileBatchMax",
        doc="Files deleted in one round.",
        unit="files",
        minimum=1,
        live=True,
        wire=True,
    )
    clean_interval_ms: int = option(
        10_000,
        key="cleanResourceInterval",
        doc="Pause between two rounds of retention.",
        unit="ms",
        minimum=100,
    )
    query_count_max: int = option(
        32,
        key="defaultQueryMaxNum",
        doc="Messages returned by a query by key when the client names no number.",
        unit="messages",
        minimum=1,
    )
    pull_bytes_max: int = option(
        262_144,
        key="maxTransferBytesOnMessageInMemory",
        doc="Bytes in one answer to a pull.",
        unit="bytes",
        minimum=1,
        maximum=PULL_BYTES_MAX,
        live=True,
        wire=True,
    )
    pull_count_max: int = option(
        32,
        key="maxTransferCountOnMessageInMemory",
        doc="Messages in one answer to a pull.",
        unit="messages",
        minimum=1,
        live=True,
        wire=True,
    )
    memory_percent_max: int = option(
        40,
        key="accessMessageInMemoryMaxRatio",
        doc="A reader further behind than this share of memory is advised to use a slave.",
        unit="%",
        minimum=0,
        maximum=100,
    )
    broker_role: str = option(
        "ASYNC_MASTER",
        key="brokerRole",
        doc="DueMQ is always a master without replicas; SYNC_MASTER is taken as ASYNC_MASTER.",
        choices=("ASYNC_MASTER", "SYNC_MASTER"),
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "queue_file_bytes", -(-self.queue_file_bytes // 20) * 20)
        for hour in self.delete_when_hours.split(";"):
            if not (hour.strip().isdigit() and int(hour) <= 23):
                why = "must be hours from 00 to 23, separated by ;"
                raise ConfigError("deleteWhen", self.delete_when_hours, why)
        if "," in self.commitlog_text:
            why = "several commit log directories are not supported; name one"
            raise ConfigError("storePathCommitLog", self.commitlog_text, why)

    @property
    def root(self) -> Path:
        """The store's directory."""
        return Path(os.path.expanduser(self.root_text))

    @property
    def commitlog_dir(self) -> Path:
        """The commit log's directory."""
        text = os.path.expanduser(self.commitlog_text)
        return Path(text) if text else self.root / "commitlog"

    @property
    def sync_flush(self) -> bool:
        """A send is answered only when its message is on the disk."""
        return self.flush_disk_type == "SYNC_FLUSH"

    @property
    def clean_hours(self) -> tuple[int, ...]:
        """Hours of the day at which expired files are deleted."""
        return tuple(int(hour) for hour in self.delete_when_hours.split(";"))
