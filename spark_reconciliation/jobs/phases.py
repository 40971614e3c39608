"""Phases of an audit, also that of a forecast: planning, scan, rules, report, with the part done.

The audit reports them to the `Phases` of its context; another thread shows them. The end of each
phase is an event of the log, with the seconds that it took.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from duemq_common.clock import Clock, SystemClock

PLANNING: Final = "planning"
SCAN: Final = "scan"
RULES: Final = "rules"
REPORT: Final = "report"
log = logging.getLogger(__name__)


class Phases:
    """Progress of one audit.

    Attributes:
        name: Present phase; empty: none.
        done, total: Bytes of it that are read, and all; 0: unknown.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self.name, self.done, self.total = "", 0, 0
        self._clock = clock or SystemClock()
        self._begin_ms = self._clock.now_ms()

    def begin(self, name: str, total: int = 0) -> None:
        """Begin a phase; the one before it ends."""
        now_ms = self._clock.now_ms()
        if self.name and self.name != name:
            fields = {"phase": self.name, "seconds": (now_ms - self._begin_ms) / 1_000}
            log.info("%s took %.1f s", *fields.values(), extra=fields)
        if self.name != name:
            self._begin_ms = now_ms
        self.name, self.done, self.total = name, 0, total

    @contextmanager
    def active(self) -> Iterator[Phases]:
        """Let the audit of this block report to this object."""
        token = _phases.set(self)
        try:
            yield self
        finally:
            self.begin("")
            _phases.reset(token)


_phases: ContextVar[Phases | None] = ContextVar("phases", default=None)


def current_phases() -> Phases:
    """Return the progress to which the present audit reports; a new one outside of `active`."""
    return _phases.get() or Phases()
