"""State table of a level's migration, compared with a table written by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duemq_migration.ownership.states import (
    MOVES,
    ROLL_BACK_MEANS,
    WORKING,
    IllegalMove,
    LevelState,
    MigrationEvent,
    State,
)

# Rows: states. Columns: the state after each event, - where the event does not apply.
TABLE = """
               start    fenced    drained   verified roll_back     returned
planned        routing  -         -          -       rolling_back  -
routing        -        draining  -          -       rolling_back  -
draining       -        -         verifying  -       rolling_back  -
verifying      -        -         -          done    rolling_back  -
done           -        -         -          -       rolling_back  -
rolling_back   -        -         -          -       -             rolled_back
rolled_back    -        -         -          -       -             -
"""
HEAD, *ROWS = (line.split() for line in TABLE.strip().splitlines())
EXPECTED = {
    (row[0], event): after for row in ROWS for event, after in zip(HEAD, row[1:], strict=True)
}
STATES = st.sampled_from(list(State))


def test_the_table_contains_every_state_and_event() -> None:
    assert [event.value for event in MigrationEvent] == HEAD
    assert [row[0] for row in ROWS] == [state.value for state in State]


@given(st.lists(st.sampled_from([event.value for event in MigrationEvent]), max_size=40))
def test_any_sequence_of_events_follows_the_table(events: list[str]) -> None:
    current, state = LevelState(3), "planned"
    for event in events:
        after = EXPECTED[state, event]
        if after == "-":
            with pytest.raises(IllegalMove, match="level 3 is"):
                current.after(MigrationEvent(event))
            continue
        current, state = current.after(MigrationEvent(event)), after
        assert current == LevelState(3, State(state))


@pytest.mark.parametrize("state", list(State))
def test_pause_and_resume_apply_to_running_states(state: State) -> None:
    current = LevelState(1, state)
    if state in WORKING:
        assert current.pause("x").resume() == current
        assert current.resume() == current
        return
    with pytest.raises(IllegalMove, match=r"pause does not apply\. \w+"):
        current.pause("x")
    with pytest.raises(IllegalMove, match=r"resume does not apply\. \w+"):
        current.resume()


@pytest.mark.parametrize("state", list(State))
def test_steps_are_taken_in_running_states_unless_paused(state: State) -> None:
    assert LevelState(1, state).is_working == (state in WORKING)
    assert not LevelState(1, state, paused=True).is_working


def test_effects_are_described_for_the_states_they_apply_to() -> None:
    rollable = {state for state, event in MOVES if event is MigrationEvent.ROLL_BACK}
    assert ROLL_BACK_MEANS.keys() == rollable


def test_a_rollback_ends_a_pause() -> None:
    paused = LevelState(1, State.DRAINING).pause("the disk is full")
    assert paused.after(MigrationEvent.ROLL_BACK) == LevelState(1, State.ROLLING_BACK)


def test_other_events_keep_a_pause() -> None:
    paused = LevelState(1, State.ROUTING).pause("the window closed")
    assert paused.after(MigrationEvent.FENCED) == LevelState(
        1, State.DRAINING, True, "the window closed"
    )


def test_an_error_has_state_cause_and_action() -> None:
    with pytest.raises(IllegalMove) as caught:
        LevelState(5, State.ROLLED_BACK).after(MigrationEvent.START)
    assert str(caught.value) == (
        "level 5 is rolled back: start does not apply. "
        "It has ended; make a new plan with `duemq migrate plan`"
    )
