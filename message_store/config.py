"""Configuration sections: frozen dataclasses parsed from Java properties text, checked once.

    text --parse_properties--> Properties --from_properties--> StoreConfig, BrokerConfig, ...

A section is a frozen dataclass whose fields are declared by `option`: Apache's key, its meaning,
unit and limits, whether a running broker applies a new value (`live`), and whether a request may
change it (`wire`). A component gets its own section only; a reload passes a new one.
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
    """Declaration of one configuration key."""

    name: str  # name of the dataclass field
    key: str  # Apache's name
    doc: str
    unit: str
    live: bool
    wire: bool  # a request of the network may change it
    default: object
    kind: type  # int, float, bool or str
    minimum: float | None
    maximum: float | None
    choices: tuple[str, ...]
    own: bool  # True: a key of DueMQ, unknown to Apache
    section: str  # class name


COUNTED = (
    "checks",
    "connections",
    "entries",
    "files",
    "groups",
    "slots",
    "subscriptions",
    "topics",
)
UNITS = {"percent": "%"} | {word: word for word in ("ms", "s", "hours", "bytes", "port", *COUNTED)}


def option(
    default: object,
    key: str,
    doc: str,
    *,
    unit: str | None = None,
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
        key: RocketMQ's name of the key (or ours, with `own`).
        doc: One sentence for the reference.
        unit: `ms`, `bytes`, `%`, ...; by default the suffix of the field's name.
        live: Whether a running broker applies a new value.
        wire: A request (25, 318) may change it as well. Never for a key that names a path, an
            address, a command or a class: the network is not trusted with those.
        minimum, maximum: Inclusive limits of a number; by default, those of its Java type.
        choices: The only words allowed.
        own: A key of DueMQ, unknown to RocketMQ.
    """
    reload = {"live": live or wire, "wire": wire}
    limits = {"minimum": minimum, "maximum": maximum, "choices": choices}
    metadata = {"key": key, "doc": doc, "unit": unit, "own": own, **reload, **limits}
    return field(default=default, metadata=metadata)


def unit_of(name: str) -> str:
    """Return the unit from the suffix of a field's name, as in `idle_ms` or `topics_max`."""
    return UNITS.get(name.removesuffix("_max").rpartition("_")[2], "")


def options(section: type) -> list[Option]:
    """Return the keys of a configuration class, in order of declaration."""
    hints = typing.get_type_hints(section)
    found = []
    for item in dataclasses.fields(section):
        if "key" not in item.metadata:
            continue
        known = dict(item.metadata)
        if known["unit"] is None:
            known["unit"] = unit_of(item.name)
        kind, name = hints[item.name], section.__name__
        found.append(Option(item.name, default=item.default, kind=kind, section=name, **known))
    return found


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


def to_properties(config: object) -> dict[str, str]:
    """Return a section as Apache prints it: key to text, every key, in declaration order."""
    return {item.key: value_text(getattr(config, item.name)) for item in options(type(config))}


def with_live(old: T, new: T) -> tuple[T, list[str]]:
    """Return `old` with the live values of `new`, and the keys whose change needs a restart."""
    live, restart = {}, []
    for item in options(type(old)):
        value = getattr(new, item.name)
        if value == getattr(old, item.name):
            continue
        if item.live:
            live[item.name] = value
        else:
            restart.append(item.key)
    return dataclasses.replace(old, **live), restart  # type: ignore[type-var]


def value_text(value: object) -> str:
    """Return a value as text of a properties file."""
    return ("true" if value else "false") if isinstance(value, bool) else str(value)


def parse_value(item: Option, text: str, source: str = "") -> Any:
    """Return the value of `text` for the key `item`.

    Raises:
        ConfigError: The value is of the wrong type or out of range.
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
    """Directories, file sizes, flushing and retention of the store.

    File sizes are part of the format: a directory must be opened with the sizes of its creation.
    Source: MessageStoreConfig.
    """

    root_text: str = option("~/store", "storePathRootDir", "Directory of the store.", unit="path")
    commitlog_text: str = option(
        "",
        "storePathCommitLog",
        "Directory of the commit log; empty: `commitlog` below the root.",
        unit="path",
    )
    commitlog_file_bytes: int = option(
        1 << 30, "mappedFileSizeCommitLog", "Size of one commit log file.", minimum=4_096
    )
    queue_file_bytes: int = option(
        6_000_000,
        "mappedFileSizeConsumeQueue",
        "Size of one consume queue file, rounded up to whole 20-byte units.",
        minimum=20,
    )
    message_bytes_max: int = option(
        4 << 20,
        "maxMessageSize",
        "Maximum length of a message body.",
        minimum=1,
        maximum=256 << 20,
        wire=True,
    )
    flush_disk_type: str = option(
        "ASYNC_FLUSH",
        "flushDiskType",
        "SYNC_FLUSH: a message is on disk before the response to its send, and before consumers "
        "receive it.",
        choices=("ASYNC_FLUSH", "SYNC_FLUSH"),
    )
    flush_commitlog_interval_ms: int = option(
        500,
        "flushIntervalCommitLog",
        "Pause between two flushes of the commit log (ASYNC_FLUSH).",
        minimum=1,
    )
    flush_queue_interval_ms: int = option(
        1_000,
        "flushIntervalConsumeQueue",
        "Pause between two flushes of the consume queues.",
        minimum=1,
        wire=True,
    )
    sync_flush_timeout_ms: int = option(
        5_000,
        "syncFlushTimeout",
        "Maximum time a SYNC_FLUSH send takes; after it the response is FLUSH_DISK_TIMEOUT.",
        minimum=1,
        wire=True,
    )
    index_enable: bool = option(
        True, "messageIndexEnable", "Keep the index of message keys and unique ids."
    )
    index_slots_max: int = option(
        5_000_000, "maxHashSlotNum", "Hash slots of one index file.", minimum=1
    )
    index_entries_max: int = option(
        20_000_000, "maxIndexNum", "Entries of one index file.", minimum=2
    )
    delete_when_hours: str = option(
        "04",
        "deleteWhen",
        "Hours of the day, separated by `;`, at which expired files are deleted.",
        unit="hour",
        wire=True,
    )
    file_reserved_hours: int = option(
        72,
        "fileReservedTime",
        "Age at which a commit log file may be deleted, unless a pending message needs it.",
        minimum=0,
        wire=True,
    )
    disk_used_percent_max: int = option(
        75,
        "diskMaxUsedSpaceRatio",
        "Disk usage at which expired files are deleted at any hour.",
        minimum=1,
        maximum=100,
        wire=True,
    )
    disk_forcible_percent: int = option(
        85,
        "diskSpaceCleanForciblyRatio",
        "Disk usage at which the oldest files are deleted before they expire.",
        minimum=1,
        maximum=100,
        wire=True,
    )
    disk_warning_percent: int = option(
        90,
        "diskSpaceWarningLevelRatio",
        "Disk usage at which writes are refused; reads continue.",
        minimum=1,
        maximum=100,
        wire=True,
    )
    clean_forcibly: bool = option(
        True,
        "cleanFileForciblyEnable",
        "Allow deletion of files that have not expired when the disk is nearly full.",
        wire=True,
    )
    delete_files_max: int = option(
        10, "deleteFileBatchMax", "Maximum files deleted in one round.", minimum=1, wire=True
    )
    clean_interval_ms: int = option(
        10_000, "cleanResourceInterval", "Pause between two rounds of retention.", minimum=100
    )
    query_count_max: int = option(
        32,
        "defaultQueryMaxNum",
        "Messages returned by a query by key when the client gives no number.",
        unit="messages",
        minimum=1,
    )
    pull_bytes_max: int = option(
        262_144,
        "maxTransferBytesOnMessageInMemory",
        "Maximum bytes in one response to a pull.",
        minimum=1,
        maximum=PULL_BYTES_MAX,
        wire=True,
    )
    pull_count_max: int = option(
        32,
        "maxTransferCountOnMessageInMemory",
        "Maximum messages in one response to a pull.",
        unit="messages",
        minimum=1,
        wire=True,
    )
    memory_percent_max: int = option(
        40,
        "accessMessageInMemoryMaxRatio",
        "Share of memory; a reader with a larger lag is advised to use a slave.",
        minimum=0,
        maximum=100,
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
        """Whether the response to a send waits until its message is on the disk."""
        return self.flush_disk_type == "SYNC_FLUSH"

    @property
    def clean_hours(self) -> tuple[int, ...]:
        """Hours of the day at which expired files are deleted."""
        return tuple(int(hour) for hour in self.delete_when_hours.split(";"))
