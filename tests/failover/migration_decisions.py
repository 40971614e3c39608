"""Decisions of an operator about migrations, and their possible effects after failures of masters.

An answered decision is in effect. A decision without an answer is in effect or not, for each level;
the next report of the level's state shows which. Every later report must agree with it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Final

DONE: Final = "done"
ROLLED_BACK: Final = "rolled_back"
GOALS: Final = {
    "planned": "",
    "routing": DONE,
    "draining": DONE,
    "verifying": DONE,
    "done": DONE,
    "rolling_back": ROLLED_BACK,
    "rolled_back": ROLLED_BACK,
}
FINAL: Final = ("planned", DONE, ROLLED_BACK)


@dataclass(frozen=True, slots=True)
class Effect:
    """Effect of the decisions about one level.

    Attributes:
        goal: State in which the level comes to rest; empty: it was never started.
    """

    goal: str = ""
    paused: bool = False

    def after(self, action: str) -> Effect:
        """Return the effect after another decision."""
        if action == "start":
            return Effect(DONE)
        if action == "rollback":
            return Effect(ROLLED_BACK)
        return replace(self, paused=action == "pause")


@dataclass(frozen=True, slots=True)
class Decision:
    """A command with its answer.

    Attributes:
        name: Name that identifies the command in the log.
        levels: Levels to which it was applied; without an answer, those that it may apply to.
        answered: Whether its success was answered.
        migration: Name of the migration that a start began.
    """

    name: str
    action: str
    levels: tuple[int, ...]
    answered: bool
    migration: str = ""


@dataclass(slots=True)
class Decisions:
    """All decisions of a run.

    Attributes:
        made: Decisions in their order.
        possible: Possible effects by level.
    """

    made: list[Decision] = field(default_factory=list)
    possible: dict[int, set[Effect]] = field(default_factory=dict)
    _migrations: dict[int, str] = field(default_factory=dict)

    def add(self, made: Decision) -> None:
        """Record a decision."""
        self.made.append(made)
        for level in made.levels:
            before = self.possible.get(level, {Effect()})
            after = {each.after(made.action) for each in before}
            self.possible[level] = after if made.answered else before | after
            if made.action == "start":
                self._migrations[level] = made.migration

    def check(self, levels: Iterable[dict[str, Any]]) -> None:
        """Check the reported states of the levels against the decisions."""
        found = {item["level"]: item for item in levels}
        for level, possible in self.possible.items():
            item = found.get(level, {"state": "planned", "paused": False, "migration": ""})
            effect = Effect(GOALS[item["state"]], item["paused"])
            last = self.made[-1]
            assert effect in possible, f"level {level} is {item}, not {possible}; last: {last}"
            self.possible[level] = {effect}
            started = self._migrations.get(level)
            assert not started or item["migration"] == started, f"{item}, not {started}"
            if item["paused"]:
                assert item["cause"], item

    @property
    def runs(self) -> set[str]:
        """Migrations whose start was answered."""
        return {each.migration for each in self.made if each.migration}

    @property
    def answered_count(self) -> int:
        """Number of answered decisions."""
        return sum(each.answered for each in self.made)
