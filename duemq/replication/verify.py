"""Verification of the epochs of a log, read-only; part of `duemq store verify`.

epochFileCheckpoint   the file or its backup is readable, and no epoch begins after the log
"""

from __future__ import annotations

from pathlib import Path

from duemq.configuration.controller_config import EPOCH_FILE
from duemq.replication.epoch_file import Epochs
from duemq_common.existence import exists
from duemq_common.json_dialect import backup_path
from message_store.verify import LogSummary, Part, Progress, Report

KIND = "epochs"


def check_epochs(root: Path, log: LogSummary, report: Report, progress: Progress) -> None:
    """Add the faults of the epoch file to a report."""
    path, faults, epochs = root / EPOCH_FILE, [], Epochs()
    for candidate in (path, backup_path(path)):
        if not exists(candidate):
            continue
        try:
            epochs = Epochs.decode(candidate.read_text("utf-8", "replace"))
            break
        except (OSError, ValueError) as error:
            faults.append((candidate, error))
    for candidate, fault in faults:
        text = f"the epochs of the log cannot be read: {fault}"
        report.add("warning" if epochs.entries else "error", KIND, candidate, 0, text)
    if epochs.last is not None and epochs.last.start_offset > log.end:
        epoch, start = epochs.last
        text = f"epoch {epoch} begins at {start}, but the log ends at {log.end}: the next start "
        report.add("warning", KIND, path, 0, text + "removes it")


EPOCHS = Part((), check_epochs)
