"""All errors that DueMQ raises.

DueMQError
├── UsageError            our caller: a bad argument, a bad configuration
│   ├── ConfigError
│   ├── PluginError       a plugin that cannot be loaded, started or combined
│   ├── NotARecordEnd     an offset that the log cannot be truncated to
│   └── PortInUse         another process listens on the port
├── PeerError             the other side of a connection
│   ├── FrameError        the stream cannot be parsed: close the connection
│   ├── ReplicationFault  a master sends bytes that cannot continue this log
│   └── RequestError      one request is refused, with Apache's response code
└── StoreError            the disk
    ├── CorruptStore      invalid bytes, with file and offset
    ├── StoreLocked       another broker owns the directory
    ├── StoreFull         no room: writes are refused, reads continue
    ├── OwnershipRefused  the log refused a step of a migration: nothing has changed
    ├── RecordUnreadable  a record that was removed or is damaged
    └── UnitsRewritten    units of a queue were damaged and have been repaired: read them again
"""

from __future__ import annotations

from pathlib import Path

from duemq_common.masking import masked


class DueMQError(Exception):
    """Root of the tree."""


class UsageError(DueMQError):
    """Invalid input of our caller."""


class ConfigError(UsageError):
    """An invalid configuration value: key, value, source, and the valid range."""

    def __init__(self, key: str, value: str, reason: str, *, source: str = "") -> None:
        self.key, self.value, self.reason, self.source = key, value, reason, source
        where = f" ({source})" if source else ""
        super().__init__(f"{key}={masked(key, value)}{where}: {reason}")


class PluginError(UsageError):
    """A plugin cannot be loaded, started, or combined with the others."""

    def __init__(self, plugin: str, reason: str) -> None:
        self.plugin, self.reason = plugin, reason
        super().__init__(f"plugin {plugin} {reason}")


class NotARecordEnd(UsageError):
    """The log cannot be truncated to an offset; `nearest` are the ends of records around it."""

    def __init__(self, offset: int, nearest: tuple[int, ...], reason: str) -> None:
        self.offset, self.nearest, self.reason = offset, nearest, reason
        places = " or ".join(map(str, nearest))
        super().__init__(
            f"the log cannot end at offset {offset}: {reason}. Truncate it to {places}"
        )


class PeerError(DueMQError):
    """A fault of the other side of a connection."""


class FrameError(PeerError):
    """The byte stream cannot be parsed any further."""


class ReplicationFault(PeerError):
    """A master sends bytes that do not continue the log of this replica."""


class RequestError(PeerError):
    """One request is refused; `code` is Apache's response code."""

    def __init__(self, code: int, remark: str) -> None:
        self.code, self.remark = code, remark
        super().__init__(remark)


class StoreError(DueMQError):
    """A fault of the disk or of the files on it."""


class CorruptStore(StoreError):
    """Bytes on the disk are invalid."""

    def __init__(self, file: Path | str, offset: int, reason: str, remedy: str) -> None:
        self.file, self.offset, self.reason, self.remedy = file, offset, reason, remedy
        super().__init__(f"{file} at byte {offset}: {reason}. {remedy}")


class StoreLocked(StoreError):
    """Another process holds the store's lock."""


class StoreFull(StoreError):
    """The disk has no room for another write."""


class OwnershipRefused(StoreError):
    """The log refused the record of a step, so the step did not happen."""


class UnitsRewritten(StoreError):
    """Units of a queue did not match their records, and were written again from the log."""


class RecordUnreadable(StoreError):
    """A record that a queue points at was removed or is damaged."""

    def __init__(self, phys_offset: int, reason: str) -> None:
        self.phys_offset, self.reason = phys_offset, reason
        super().__init__(f"commit log offset {phys_offset}: {reason}")
