"""Decisions compared with a dictionary: random puts, cancels, moves, fires, restarts and kills."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from delayed_delivery.pending import Verdict
from tests.support.synchronous import Synchronous
from tests.support.timer_rig import TimerRig
from timer_store.pending.lookup import PendingTimers

DELAYS_MS = st.sampled_from((1, 2, 150, 999, 1_000, 1_001, 4_000, 9_000, 61_000))
PICKS = st.lists(st.integers(0, 1 << 20), min_size=1, max_size=6)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.lists(DELAYS_MS, min_size=1, max_size=8)),
        st.tuples(st.just("cancel"), PICKS),
        st.tuples(st.just("fire"), PICKS),
        st.tuples(st.just("move"), PICKS, DELAYS_MS),
        st.tuples(st.just("advance"), DELAYS_MS),
        st.tuples(
            st.sampled_from(("persist", "kill", "close", "stop_delivery", "continue_delivery"))
        ),
    ),
    max_size=25,
)


class DecidedTimers:
    """A timer store with the expected due times and delivered bodies."""

    def __init__(self, root: Path) -> None:
        self.rig = TimerRig(root, roll_window_slots=3, stage_records_max=5).open()
        self.first: list[int] = []  # log offset of each message's first record
        self.waits: dict[int, int] = {}
        self.gone: set[int] = set()

    def run(self, step: tuple[Any, ...]) -> None:
        name = step[0].replace(" ", "_")
        getattr(self, name, self.restart if name in ("kill", "close") else None)(*step[1:] or step)  # type: ignore[misc]

    def put(self, delays: list[int]) -> None:
        now_ms = self.rig.clock.now_ms()
        for delay_ms in delays:
            number = len(self.first)
            batch = self.rig.put(now_ms + delay_ms, body=b"%d" % number, UNIQ_KEY=f"K{number}")
            self.first.append(int(batch.rows[0]["phys_offset"]))
            self.waits[number] = now_ms + delay_ms

    def chosen(self, picks: list[int]) -> list[int]:
        return sorted({pick % len(self.first) for pick in picks}) if self.first else []

    def decide(self, numbers: list[int], how: Any) -> None:
        """Find timers and decide on them; compare the verdicts."""
        if not numbers:
            return
        waiting = Synchronous(PendingTimers(self.rig.timers))
        found = waiting.by_offset(np.array([self.first[n] for n in numbers], np.int64))
        by_key = waiting.by_key("T", [f"K{n}" for n in numbers], unique=True)
        assert sorted(found.offsets.tolist()) == sorted(by_key.offsets.tolist())
        assert found.verdicts.tolist() == by_key.verdicts.tolist()
        for number, verdict in zip(numbers, found.verdicts.tolist(), strict=True):
            expected = Verdict.CANCELLED if number in self.gone else Verdict.DELIVERED
            assert verdict == (Verdict.DONE if number in self.waits else expected)
        assert [self.waits[numbers[at]] for at in found.name_index] == found.due_ms.tolist()
        assert (how(waiting, found.offsets).verdicts == Verdict.DONE).all()

    def cancel(self, picks: list[int]) -> None:
        numbers = self.chosen(picks)
        self.decide(numbers, lambda waiting, offsets: waiting.cancel(offsets))
        self.gone |= {n for n in numbers if self.waits.pop(n, None) is not None}

    def fire(self, picks: list[int]) -> None:
        numbers = self.chosen(picks)
        self.decide(numbers, lambda waiting, offsets: waiting.fire(offsets))
        for number in numbers:
            self.waits.pop(number, None)

    def move(self, picks: list[int], delay_ms: int) -> None:
        numbers, due_ms = self.chosen(picks), self.rig.clock.now_ms() + delay_ms

        def how(waiting: PendingTimers, offsets: Any) -> Any:
            return waiting.move(offsets, np.full(offsets.size, due_ms), lambda *_: None)

        self.decide(numbers, how)
        self.waits |= {n: due_ms for n in numbers if n in self.waits}

    def advance(self, step_ms: int) -> None:
        if self.rig.timers.config.stop_enqueue:
            return
        self.rig.advance(step_ms)
        now_ms = self.rig.clock.now_ms()
        self.waits = {n: due_ms for n, due_ms in self.waits.items() if due_ms > now_ms}

    def persist(self, _: str) -> None:
        self.rig.persist()

    def restart(self, how: str) -> None:
        getattr(self.rig, how)()
        self.rig.open()

    def stop_delivery(self, _: str) -> None:
        self.rig.timers.state.config = replace(self.rig.config, stop_enqueue=True)

    def continue_delivery(self, _: str) -> None:
        self.rig.timers.state.config = self.rig.config
        self.rig.work()

    def check(self) -> None:
        bodies = [int(body) for body in self.rig.bodies()]
        expected = set(range(len(self.first))) - self.waits.keys() - self.gone
        assert sorted(bodies) == sorted(expected)
        if not self.rig.timers.config.stop_enqueue:
            assert self.rig.timers.counts.total == len(self.waits)


@settings(max_examples=40, deadline=None)
@given(steps=STEPS)
def test_verdicts_match_the_deliveries(steps: list[tuple[str | int | list[int], ...]]) -> None:
    with tempfile.TemporaryDirectory() as root:
        model = DecidedTimers(Path(root))
        for step in steps:
            model.run(step)
            model.check()
        model.continue_delivery("")
        model.advance(200_000)
        model.check()
        assert not model.waits
        model.rig.close()
