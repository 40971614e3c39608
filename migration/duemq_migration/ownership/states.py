"""States of a level's migration and all legal transitions. No I/O, no time.

    PLANNED --START--> ROUTING --FENCED--> DRAINING --DRAINED--> VERIFYING --VERIFIED--> DONE
       |                  |                   |                      |                     |
       +------------------+-------------------+----------------------+------------ ROLL_BACK
                                                                                           v
                                            ROLLED_BACK <--RETURNED--               ROLLING_BACK

Each level has its own state. A pause is not a state: a paused level keeps its state, and
`resume` continues there. During a pause, new messages of a level still follow its route, so clients
see no difference.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from delayed_delivery.ownership import MigrationState
from duemq_common.errors import UsageError

State = MigrationState


class MigrationEvent(StrEnum):
    """Event that moves a level to another state."""

    START = "start"  # an operator starts the migration
    FENCED = "fenced"  # the route is in the log: new messages are stored as timers
    DRAINED = "drained"  # the level owns no message before the fence
    VERIFIED = "verified"  # counts and checksums of both owners agree
    ROLL_BACK = "roll_back"  # an operator requests the return to the level
    RETURNED = "returned"  # the level owns all its messages again, new ones included


MOVES: Final[dict[tuple[State, MigrationEvent], State]] = {
    (State.PLANNED, MigrationEvent.START): State.ROUTING,
    (State.ROUTING, MigrationEvent.FENCED): State.DRAINING,
    (State.DRAINING, MigrationEvent.DRAINED): State.VERIFYING,
    (State.VERIFYING, MigrationEvent.VERIFIED): State.DONE,
    (State.PLANNED, MigrationEvent.ROLL_BACK): State.ROLLING_BACK,
    (State.ROUTING, MigrationEvent.ROLL_BACK): State.ROLLING_BACK,
    (State.DRAINING, MigrationEvent.ROLL_BACK): State.ROLLING_BACK,
    (State.VERIFYING, MigrationEvent.ROLL_BACK): State.ROLLING_BACK,
    (State.DONE, MigrationEvent.ROLL_BACK): State.ROLLING_BACK,
    (State.ROLLING_BACK, MigrationEvent.RETURNED): State.ROLLED_BACK,
}
WORKING: Final = frozenset({State.ROUTING, State.DRAINING, State.VERIFYING, State.ROLLING_BACK})
"""States with steps; a migration in one of them can be paused."""

ROLL_BACK_MEANS: Final[dict[State, str]] = {
    State.PLANNED: "no message was moved; the level is unchanged",
    State.ROUTING: "timers made of new messages return to the level's queue",
    State.DRAINING: "drained messages return to the level in place, new ones as copies",
    State.VERIFYING: "drained messages return to the level in place, new ones as copies",
    State.DONE: "pending timers that came from the level return to it; due times do not change",
}
"""Effect of a rollback in each state that allows it."""

_WHAT_TO_DO: Final[dict[State, str]] = {
    State.PLANNED: "Start it with `duemq migrate start`, or make a new plan",
    State.ROUTING: "Wait, pause it, or roll it back",
    State.DRAINING: "Wait, pause it, or roll it back",
    State.VERIFYING: "Wait, pause it, or roll it back",
    State.DONE: "It is complete; `duemq migrate rollback` returns the messages to the level",
    State.ROLLING_BACK: "Wait until it is rolled back, or pause it",
    State.ROLLED_BACK: "It has ended; make a new plan with `duemq migrate plan`",
}


class IllegalMove(UsageError):
    """Error: an event or a command that the state of a level does not allow."""

    def __init__(self, level: int, state: State, requested: str) -> None:
        self.level, self.state, self.requested = level, state, requested
        name = state.replace("_", " ")
        super().__init__(
            f"level {level} is {name}: {requested} does not apply. {_WHAT_TO_DO[state]}"
        )


class LevelState(Struct, frozen=True):
    """State of one level.

    Attributes:
        paused: Whether steps are suspended until it is resumed.
        cause: Operator or condition that paused it; "" if it is not paused.
    """

    level: int
    state: State = State.PLANNED
    paused: bool = False
    cause: str = ""

    @property
    def is_working(self) -> bool:
        """Whether the service performs steps of the level now."""
        return self.state in WORKING and not self.paused

    @property
    def is_rolled_back(self) -> bool:
        """Whether another migration of this level may be planned."""
        return self.state is State.ROLLED_BACK

    def after(self, event: MigrationEvent) -> LevelState:
        """Return the state after an event; a rollback also ends a pause.

        Raises:
            IllegalMove: The state does not allow the event.
        """
        state = MOVES.get((self.state, event))
        if state is None:
            raise IllegalMove(self.level, self.state, event.value.replace("_", " "))
        if event is MigrationEvent.ROLL_BACK:
            return LevelState(self.level, state)
        return replace(self, state=state)

    def pause(self, cause: str) -> LevelState:
        """Return the paused state; a second pause replaces the cause.

        Raises:
            IllegalMove: The state has no steps.
        """
        if self.state not in WORKING:
            raise IllegalMove(self.level, self.state, "pause")
        return replace(self, paused=True, cause=cause)

    def resume(self) -> LevelState:
        """Return the state without a pause; unchanged if it is not paused.

        Raises:
            IllegalMove: The state has no steps.
        """
        if self.state not in WORKING:
            raise IllegalMove(self.level, self.state, "resume")
        return replace(self, paused=False, cause="")
