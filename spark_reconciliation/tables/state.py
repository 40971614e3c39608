"""State of an export: the steps that were committed, and the step that is being published.

    OUT/_duemq/state.json     written last in each step, atomically
    OUT/_duemq/staging/       files of a step that is not committed

A step covers the records of one broker's log from `start` to `end`. Its first and its last record
are remembered, so that a truncated log and the log of another store are noticed.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Self

import msgspec

from duemq_common.directories import replace_file
from duemq_common.errors import UsageError
from duemq_common.existence import exists
from spark_reconciliation.scan.record_mark import RecordMark
from spark_reconciliation.tables.schemas import TABLES

FORMAT: Final = "duemq-tables"
VERSION: Final = 1
FOLDER: Final = "_duemq"
STEPS_MAX: Final = 1_000
"""Steps of a broker that a truncated log can be compared with."""


@dataclass(frozen=True, slots=True)
class Step:
    """Committed part of a log.

    Attributes:
        number: Number of the step, unique in the output.
        start, end: Log offsets.
        first, last: First and last record of the step; None without records.
    """

    number: int
    start: int
    end: int
    first: RecordMark | None
    last: RecordMark | None


@dataclass(frozen=True, slots=True)
class ExportedBroker:
    """Progress of one broker.

    Attributes:
        index: Number of the broker in the names of files.
        store: Path or URL of the store.
        first: Log offset at which the first step began.
        steps: Newest steps, oldest first.
    """

    index: int
    store: str
    first: int
    steps: tuple[Step, ...] = ()

    @property
    def end(self) -> int:
        """Log offset of the end of the last step."""
        return self.steps[-1].end if self.steps else self.first

    def with_step(self, step: Step, dropped: frozenset[int]) -> Self:
        """Return the progress after a step that replaces the dropped ones."""
        kept = tuple(one for one in self.steps if one.number not in dropped)
        return replace(self, steps=(*kept, step)[-STEPS_MAX:])


@dataclass(frozen=True, slots=True)
class Publication:
    """Step whose files are moved from `staging` into their tables.

    Attributes:
        dropped: Numbers of replaced steps, whose files are removed.
    """

    index: int
    dropped: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ExportState:
    """State of an export.

    Attributes:
        steps: Number of steps that were committed, replaced ones included.
    """

    steps: int = 0
    brokers: dict[str, ExportedBroker] = field(default_factory=dict)
    publication: Publication | None = None


@dataclass(frozen=True, slots=True)
class _Head:
    """Fields of the file that are the same in all versions."""

    format: str = FORMAT
    version: int = VERSION
    schemas: dict[str, int] = field(
        default_factory=lambda: {name: table.version for name, table in TABLES.items()}
    )


@dataclass(frozen=True, slots=True)
class _StateFile(_Head):
    """Contents of the file."""

    state: ExportState = ExportState()


def read_state(out: Path) -> ExportState:
    """Return the state of an output; an empty one for a new or an empty directory.

    Raises:
        UsageError: The state is of another version, or malformed; or the directory contains files
            and no state.
    """
    path = out / FOLDER / "state.json"
    if not exists(path):
        others = sorted(one.name for one in out.iterdir()) if exists(out) else []
        if others not in ([], [FOLDER]):
            raise UsageError(
                f"{out} is not an export: it contains {others[0]} and no {FOLDER}/state.json; "
                f"name a new directory"
            )
        return ExportState()
    try:
        head = msgspec.json.decode(path.read_bytes(), type=_Head)
        expected = _Head()
        if head != expected:
            raise UsageError(
                f"{path} is the state of {head.format} {head.version} with tables {head.schemas}; "
                f"this version writes {expected.format} {expected.version} with "
                f"{expected.schemas}: export into a new directory"
            )
        return msgspec.json.decode(path.read_bytes(), type=_StateFile).state
    except msgspec.DecodeError as error:
        raise UsageError(f"{path} is not a state of an export: {error}") from error


def write_state(out: Path, state: ExportState) -> None:
    """Write the state atomically: a reader finds the former one or this one.

    Raises:
        OSError: It cannot be written; the former one remains.
    """
    replace_file(out / FOLDER / "state.json", msgspec.json.encode(_StateFile(state=state)))
