"""Configuration section of the store."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from duemq_common.config import expanded, option
from duemq_common.errors import ConfigError

ASYNC_FLUSH: Final = "ASYNC_FLUSH"
SYNC_FLUSH: Final = "SYNC_FLUSH"
PULL_BYTES_MAX = (16 << 20) - (64 << 10)  # a frame of 16 MiB, without room for its header


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
        ASYNC_FLUSH,
        "flushDiskType",
        "SYNC_FLUSH: a message is on disk before the response to its send, and before consumers "
        "receive it.",
        choices=(ASYNC_FLUSH, SYNC_FLUSH),
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
                reason = "must be hours from 00 to 23, separated by ;"
                raise ConfigError("deleteWhen", self.delete_when_hours, reason)
        if not self.root_text:
            reason = "must not be empty: set a directory, or remove the key for the default"
            raise ConfigError("storePathRootDir", "", reason)
        if "," in self.commitlog_text:
            reason = "several commit log directories are not supported; name one"
            raise ConfigError("storePathCommitLog", self.commitlog_text, reason)

    @property
    def root(self) -> Path:
        """The store's directory."""
        return expanded("storePathRootDir", self.root_text)

    @property
    def commitlog_dir(self) -> Path:
        """The commit log's directory."""
        text = self.commitlog_text
        return expanded("storePathCommitLog", text) if text else self.root / "commitlog"

    @property
    def clean_hours(self) -> tuple[int, ...]:
        """Hours of the day at which expired files are deleted."""
        return tuple(int(hour) for hour in self.delete_when_hours.split(";"))
