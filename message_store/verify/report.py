"""Result of a verification: findings with their position, and counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

FINDINGS_PER_KIND_MAX = 100

Severity = Literal["error", "warning", "note"]
Progress = Callable[[str, int, int], None]  # phase, done, total


@dataclass(frozen=True, slots=True)
class StoreFinding:
    """One observation about a position in the store.

    Attributes:
        severity: `error` (data are lost or wrong), `warning` (the next start of a broker repairs
            it, or is refused), `note` (normal).
        kind: Short name for programs, such as `record-crc`.
        file: Path below the store's root.
        offset: Byte in that file.
    """

    severity: Severity
    kind: str
    file: str
    offset: int
    text: str

    def __str__(self) -> str:
        return f"{self.severity}: {self.file} at byte {self.offset}: {self.text}"


@dataclass(slots=True)
class Report:
    """Result of a check.

    Attributes:
        counts: Number of findings by kind, including those that are not listed.
        listed: Number of `findings` by kind; `unlisted`: number beyond the limit of a kind.
        figures: Numbers of records, units, items and bytes in the store.
    """

    root: Path
    findings: list[StoreFinding] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    severities: Counter[str] = field(default_factory=Counter)
    listed: Counter[str] = field(default_factory=Counter)
    unlisted: int = 0
    figures: dict[str, int] = field(default_factory=dict)

    def add(
        self, severity: Severity, kind: str, path: Path, offset: int, text: str, *, count: int = 1
    ) -> None:
        """Add a finding for `count` items; past the limit only count it."""
        self.counts[kind] += count
        self.severities[severity] += count
        if self.listed[kind] < FINDINGS_PER_KIND_MAX:
            self.listed[kind] += 1
            name = str(path.relative_to(self.root)) if path.is_relative_to(self.root) else str(path)
            self.findings.append(StoreFinding(severity, kind, name, offset, text))
        else:
            self.unlisted += 1

    def count(self, name: str, value: int) -> None:
        """Add to a figure."""
        self.figures[name] = self.figures.get(name, 0) + value

    @property
    def ok(self) -> bool:
        """Whether the store has no faults."""
        return not self.severities["error"]

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain values."""
        return {
            "store": str(self.root),
            "ok": self.ok,
            "errors": self.severities["error"],
            "warnings": self.severities["warning"],
            "figures": dict(self.figures),
            "counts": dict(self.counts),
            "unlisted": self.unlisted,
            "findings": [asdict(finding) for finding in self.findings],
        }
