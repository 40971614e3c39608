"""States of a level's migration and all legal transitions. No I/O, no time.

    PLANNED --START--> ROUTING --FENCED--> DRAINING --EMPTIED--> VERIFYING --PROVED--> DONE
       |                  |                   |                      |                   |
       +------------------+-------------------+----------------------+---------- ROLL_BACK
                                                                                         v
                                            ROLLED_BACK <--GIVEN_BACK--           ROLLING_BACK

Levels move independently. Pausing is no state of its own: a paused level keeps the state it is in,
and `resume` goes on there. New messages of a level follow its route, paused or not, so a client
never notices a pause.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from delivery.ownership import MigrationState
from message_store.errors import UsageError

State = MigrationState


class Event(StrEnum):
    """What makes a level move."""

    START = "start"  # an operator starts it
    FENCED = "fenced"  # the route is in the log: what comes now is stored as timers
    EMPTIED = "emptied"  # nothing before the fence is left with the level
    PROVED = "proved"  # counts and checksums of both sides agree
    ROLL_BACK = "roll_back"  # an operator wants the level back as it was
    GIVEN_BACK = "given_back"  # the level owns everything again, and its new messages


MOVES: Final[dict[tuple[State, Event], State]] = {
    (State.PLANNED, Event.START): State.ROUTING,
    (State.ROUTING, Event.FENCED): State.DRAINING,
    (State.DRAINING, Event.EMPTIED): State.VERIFYING,
    (State.VERIFYING, Event.PROVED): State.DONE,
    (State.PLANNED, Event.ROLL_BACK): State.ROLLING_BACK,
    (State.ROUTING, Event.ROLL_BACK): State.ROLLING_BACK,
    (State.DRAINING, Event.ROLL_BACK): State.ROLLING_BACK,
    (State.VERIFYING, Event.ROLL_BACK): State.ROLLING_BACK,
    (State.DONE, Event.ROLL_BACK): State.ROLLING_BACK,
    (State.ROLLING_BACK, Event.GIVEN_BACK): State.ROLLED_BACK,
}
WORKING: Final = frozenset({State.ROUTING, State.DRAINING, State.VERIFYING, State.ROLLING_BACK})
"""States in which steps are taken; these can be paused."""

PAUSE_MEANS: Final[dict[State, str]] = {
    State.ROUTING: "the fence is set if it was not, and nothing is drained",
    State.DRAINING: "draining stops behind the batch in hand; new messages are stored as timers",
    State.VERIFYING: "counting stops and begins again on resume",
    State.ROLLING_BACK: (
        "giving back stops behind the batch in hand; new messages are stored as timers until "
        "the last batch"
    ),
}
"""What a pause does in each state that has steps."""

ROLL_BACK_MEANS: Final[dict[State, str]] = {
    State.PLANNED: "nothing was moved; the level is as it was",
    State.ROUTING: "timers made of new messages go back into the level's queue",
    State.DRAINING: "drained messages go back to the level where they lie, new ones by a copy",
    State.VERIFYING: "drained messages go back to the level where they lie, new ones by a copy",
    State.DONE: "timers that came from the level and still wait go back; due times stay",
}
"""What a rollback does from each state that allows it."""

_WHAT_TO_DO: Final[dict[State, str]] = {
    State.PLANNED: "Start it with `duemq migrate start`, or make a new plan",
    State.ROUTING: "Wait, pause it, or roll it back",
    State.DRAINING: "Wait, pause it, or roll it back",
    State.VERIFYING: "Wait, pause it, or roll it back",
    State.DONE: "Nothing is left to do; `duemq migrate rollback` takes it back",
    State.ROLLING_BACK: "Wait until it is back, or pause it",
    State.ROLLED_BACK: "It is over; make a new plan with `duemq migrate plan`",
}


class IllegalMove(UsageError):
    """A level cannot do this in the state it is in."""

    def __init__(self, level: int, state: State, wanted: str) -> None:
        self.level, self.state, self.wanted = level, state, wanted
        name = state.replace("_", " ")
        super().__init__(f"level {level} is {name}: {wanted} does not apply. {_WHAT_TO_DO[state]}")


def is_legal(before: State, after: State) -> bool:
    """Return whether some event leads from one state to the other."""
    return any(a == before and b == after for (a, _), b in MOVES.items())


@dataclass(frozen=True, slots=True)
class LevelState:
    """Where one level stands.

    Attributes:
        paused: no steps are taken until it is resumed.
        cause: why it is paused: the operator, or the condition that stopped it; "" when it is not.
    """

    level: int
    state: State = State.PLANNED
    paused: bool = False
    cause: str = ""

    @property
    def works(self) -> bool:
        """Whether steps are to be taken now."""
        return self.state in WORKING and not self.paused

    @property
    def over(self) -> bool:
        """Whether another migration of this level may be planned."""
        return self.state is State.ROLLED_BACK

    def after(self, event: Event) -> LevelState:
        """Return where the level stands after an event; a rollback also ends a pause.

        Raises:
            IllegalMove: The event does not happen in this state.
        """
        state = MOVES.get((self.state, event))
        if state is None:
            raise IllegalMove(self.level, self.state, event.value.replace("_", " "))
        if event is Event.ROLL_BACK:
            return LevelState(self.level, state)
        return replace(self, state=state)

    def pause(self, cause: str) -> LevelState:
        """Return the current of a paused level; the cause of a second pause is the newer one.

        Raises:
            IllegalMove: Nothing runs that could be paused.
        """
        if self.state not in WORKING:
            raise IllegalMove(self.level, self.state, "pause")
        return replace(self, paused=True, cause=cause)

    def resume(self) -> LevelState:
        """Return the current of a level that works on; nothing changes if it was not paused.

        Raises:
            IllegalMove: Nothing is left to go on with.
        """
        if self.state not in WORKING:
            raise IllegalMove(self.level, self.state, "resume")
        return replace(self, paused=False, cause="")
