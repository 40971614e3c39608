"""Checks of small files: JSON tables, checkpoint, marks, leftovers of a crash."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

from duemq_common import config_sums, json_dialect
from duemq_common.existence import exists, is_directory
from message_store import layout
from message_store.recovery.checkpoint import has_damage
from message_store.verify.files import is_offset
from message_store.verify.report import Report

CONFIG_BYTES_MAX = 256 << 20
TABLE_NAMES = {
    "topics.json": "topicConfigTable",
    "deletedTopics.json": "deletedTopics",
    "subscriptionGroup.json": "subscriptionGroupTable",
    "consumerOffset.json": "offsetTable",
    "consumerFilter.json": "filterDataByTopic",
    "delayOffset.json": "offsetTable",
}
LOCKS_PATH, PROCESS_PATH = Path("/proc/locks"), Path("/proc/self")
TRUNCATED_DIRECTORY = "truncated"
OTHER_PARTS = ("batchconsumequeue", "consumequeue_ext", "compaction", "timerlog", "timerwheel")


def check_configs(root: Path, report: Report) -> dict[str, Any]:
    """Check every table; return the readable ones by file name."""
    directory = root / "config"
    tables: dict[str, Any] = {}
    paths = sorted(directory.glob("*.json*")) if is_directory(directory) else []
    names = sorted({path.name.removesuffix(".bak") for path in paths if path.suffix != ".tmp"})
    for name in names:
        table = _check_table(directory / name, report)
        if table is not None:
            tables[name] = table
    report.figures["config_files"] = len(names)
    return tables


def _check_table(path: Path, report: Report) -> Any:
    """Return the value of a table or of its backup, None if neither can be read."""
    value, reason = _read(path)
    if value is not None:
        return value
    backup = json_dialect.backup_path(path)
    value, why_backup = _read(backup)
    if value is not None:
        text = f"{reason}; {backup.name} is good and is used instead"
        report.add("warning", "config", path, 0, text)
        return value
    text = f"{reason}; {backup.name}: {why_backup}. Restore one of them from a copy"
    report.add("error", "config", path, 0, text)
    return None


def _read(path: Path) -> tuple[Any, str]:
    """Return (value, fault)."""
    try:
        if path.stat().st_size > CONFIG_BYTES_MAX:
            return None, f"longer than {CONFIG_BYTES_MAX} bytes"
        text = config_sums.checked(path, path.read_bytes()).decode("utf-8")
        if not text.strip():
            return None, "it is empty"
        value = json_dialect.loads(text)
    except FileNotFoundError:
        return None, "it is missing"
    except (OSError, ValueError) as error:
        return None, f"it cannot be read: {error}"
    return _checked(path, value)


def _checked(path: Path, value: Any) -> tuple[Any, str]:
    table = TABLE_NAMES.get(path.name.removesuffix(".bak"))
    if table is None:
        return value, ""
    if not isinstance(value, dict) or not isinstance(value.get(table, {}), dict):
        return None, f"it has no object {table!r}"
    return value, ""


def check_checkpoint(path: Path, report: Report, last_store_ms: int, log_end: int) -> None:
    """Check that nothing is after the log's last record; recovery would start too late."""
    if not exists(path):
        if last_store_ms:
            text = "there is none: after a crash a broker reads the whole log"
            report.add("note", "checkpoint", path, 0, text)
        return
    try:
        content = path.read_bytes()
    except OSError as error:
        text = f"it cannot be read: {error}; after a crash a broker reads the whole log"
        report.add("warning", "checkpoint", path, 0, text)
        return
    data = content[: layout.CHECKPOINT_BYTES]
    if len(data) < 24:
        text = f"it has {len(data)} bytes; after a crash a broker reads the whole log"
        report.add("warning", "checkpoint", path, len(data), text)
        return
    if any(content[layout.CHECKPOINT.itemsize :]):
        text = "bytes that are not used are not zero: the disk has changed them"
        report.add("warning", "checkpoint", path, layout.CHECKPOINT.itemsize, text)
    *times, _, confirmed, _ = layout.packer(layout.CHECKPOINT).unpack_from(
        data.ljust(layout.CHECKPOINT_BYTES, b"\0")
    )
    for number, (name, time_ms) in enumerate(zip(("log", "queues", "index"), times, strict=True)):
        if time_ms < 0 or time_ms > last_store_ms:
            text = (
                f"the time for the {name} is {time_ms} ms, but the last record of the log is of "
                f"{last_store_ms} ms: after a crash, recovery would start too late"
            )
            report.add("warning", "checkpoint", path, 8 * number, text)
    if not 0 <= confirmed <= log_end:
        text = f"the log is confirmed up to {confirmed}, but ends at {log_end}: its end counts"
        report.add("warning", "checkpoint", path, 32, text)


def check_mark(path: Path, report: Report) -> None:
    """Check the recovery mark's checksums, and that the rest of the file is empty."""
    if not exists(path):
        return
    try:
        damaged = has_damage(path.read_bytes())
    except OSError as error:
        text = f"it cannot be read: {error}; the next start reads the log again"
        report.add("warning", "mark", path, 0, text)
        return
    if damaged:
        text = "it is damaged; the next start uses its other half, or reads more of the log again"
        report.add("warning", "mark", path, 0, text)


def is_in_use(root: Path) -> bool:
    """Return whether a process has locked the store, without touching the lock file.

    Opening and closing it would release a lock of this process.
    """
    try:
        named = f":{(root / 'lock').stat().st_ino}"
        lines = LOCKS_PATH.read_text().splitlines()
    except OSError:
        return False
    named = file_system_of(root) + named
    locks = (line.split() for line in lines)
    return any("POSIX" in words and words[-3].endswith(named) for words in locks if len(words) > 5)


def file_system_of(root: Path) -> str:
    """Return the device of a directory's file system as in LOCKS_PATH; empty if it is unknown.

    Inode numbers are unique only within a file system: the locks of stores on two new volumes often
    have the same one. The device number of `stat` differs from that of the file system on Btrfs.
    """
    try:
        directory = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
        try:
            info = (PROCESS_PATH / "fdinfo" / str(directory)).read_text()
        finally:
            os.close(directory)
        mount = next(line.split()[1] for line in info.splitlines() if line.startswith("mnt_id:"))
        mounts = [line.split() for line in (PROCESS_PATH / "mountinfo").read_text().splitlines()]
        major, minor = next(words[2] for words in mounts if words[0] == mount).split(":")
        return f"{int(major):02x}:{int(minor):02x}"
    except (OSError, ValueError, IndexError, StopIteration):
        return ""


def replaced_ranges(root: Path) -> list[tuple[int, int]]:
    """Return (start, end) log offsets of bytes that recoveries have moved out of the log."""
    saved = root / TRUNCATED_DIRECTORY
    paths = sorted(saved.iterdir()) if is_directory(saved) else []
    return [
        (int(path.name), int(path.name) + path.stat().st_size)
        for path in paths
        if is_offset(path.name)
    ]


def check_surroundings(root: Path, report: Report, checked: Collection[str] = ()) -> None:
    """Report a lock, an unclean stop, bytes taken out of the log, and files that are not checked.

    Args:
        checked: Names below `root` that other checks cover.
    """
    if is_in_use(root):
        text = "a broker uses this store now; its writes may appear as faults"
        report.add("warning", "in-use", root / "lock", 0, text)
    elif exists(root / "abort"):
        text = "its broker did not stop cleanly; the next start recovers it"
        report.add("note", "abort", root / "abort", 0, text)
    for start, end in replaced_ranges(root):
        text = (
            f"{end - start} bytes from log offset {start} on, which are not records: an earlier "
            f"recovery took them out of the log and kept them here"
        )
        report.add("note", "truncated", root / TRUNCATED_DIRECTORY / f"{start:020d}", 0, text)
    for name in OTHER_PARTS:
        if name not in checked and exists(root / name):
            report.add("note", "unchecked", root / name, 0, "it is not checked")
