from __future__ import annotations

import random
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from duemq.pull.layout import BLANK_UNIT_SIZE
from duemq.pull.pull_plan import (
    PullLimits,
    PullRequest,
    outcome_of_offset,
    select_units,
)
from duemq.registry.subscriptions import parse_expression
from duemq_common.text import java_hash
from message_store import layout

A, B = java_hash("a"), java_hash("b")
LOG_MAX = 1_000_000


def request(**changes: int) -> PullRequest:
    values = {"group": "G", "topic": "T", "queue_id": 0, "offset": 100, "count_max": 32}
    values |= {"bytes_max": 1 << 30, "sys_flag": 0, "commit_offset": 0, "suspend_ms": 0}
    values |= {"version": 0}
    return PullRequest(**(values | changes))


def units(*rows: tuple[int, int, int]) -> npt.NDArray[np.void]:
    return np.array([(*row, 0) for row in rows], layout.UNIT)


@pytest.mark.parametrize(
    ("offset", "low", "high", "code", "status", "next_offset"),
    [
        (0, 0, 0, 19, "NO_MESSAGE_IN_QUEUE", 0),
        (5, 0, 0, 21, "NO_MESSAGE_IN_QUEUE", 0),
        (4, 5, 9, 21, "OFFSET_TOO_SMALL", 5),
        (-1, 5, 9, 21, "OFFSET_TOO_SMALL", 5),
        (9, 5, 9, 19, "OFFSET_OVERFLOW_ONE", 9),
        (10, 5, 9, 21, "OFFSET_OVERFLOW_BADLY", 9),
    ],
)
def test_outcomes_decided_by_the_offset_alone(
    offset: int, low: int, high: int, code: int, status: str, next_offset: int
) -> None:
    outcome = outcome_of_offset(offset, low, high)
    assert (outcome.code, outcome.status, outcome.next_offset) == (code, status, next_offset)


@pytest.mark.parametrize("offset", [5, 8])
def test_an_offset_within_the_bounds_needs_a_read(offset: int) -> None:
    assert outcome_of_offset(offset, 5, 9) is None


@pytest.mark.parametrize(
    ("rows", "expression", "taken", "code", "status", "next_offset"),
    [
        ([(0, A, 10), (10, B, 10)], "*", 2, 0, "FOUND", 102),
        ([(0, A, 10), (10, B, 10)], "b", 1, 0, "FOUND", 102),
        ([(0, A, 10), (10, B, 10)], "c", 0, 20, "NO_MATCHED_MESSAGE", 102),
        ([(-50, A, 10), (-40, B, 10)], "*", 0, 20, "MESSAGE_WAS_REMOVING", 102),
        ([(-50, A, 10), (0, B, 10)], "*", 1, 0, "FOUND", 102),
        ([(0, 0, BLANK_UNIT_SIZE), (0, A, 10)], "*", 1, 0, "FOUND", 102),
        ([(0, 0, BLANK_UNIT_SIZE)], "*", 0, 20, "MESSAGE_WAS_REMOVING", 101),
    ],
)
def test_selected_messages_and_next_offset(
    rows: list[tuple[int, int, int]],
    expression: str,
    taken: int,
    code: int,
    status: str,
    next_offset: int,
) -> None:
    outcome = select_units(
        units(*rows),
        request(),
        parse_expression("T", expression),
        PullLimits(),
        log_min=0,
        log_max=LOG_MAX,
    )
    assert (outcome.code, outcome.status, outcome.next_offset) == (code, status, next_offset)
    assert (0 if outcome.units is None else outcome.units.size) == taken


@pytest.mark.parametrize(
    ("size", "changes", "limits", "taken"),
    [
        (10, {}, {}, 32),
        (10, {"count_max": 3}, {}, 3),
        (10, {"count_max": 64}, {}, 32),
        (100_000, {}, {}, 2),
        (300_000, {}, {}, 1),
        (100, {"bytes_max": 250}, {}, 2),
        (100, {"bytes_max": 1}, {}, 1),
        (10, {}, {"memory_span_bytes": 0}, 8),
        (40_000, {}, {"memory_span_bytes": 0}, 1),
    ],
)
def test_a_response_is_bounded_and_has_at_least_one_message(
    size: int, changes: dict[str, int], limits: dict[str, int], taken: int
) -> None:
    rows = [(n, A, size) for n in range(50)]
    outcome = select_units(
        units(*rows),
        request(**changes),
        parse_expression("T", "*"),
        PullLimits(**limits),
        log_min=0,
        log_max=LOG_MAX,
    )
    assert outcome.units.size == taken
    assert outcome.next_offset == 100 + taken


def naive_choose(
    rows: list[tuple[int, int, int]],
    count_max: int,
    bytes_max: int,
    tags: list[int] | None,
    limits: PullLimits,
    log_min: int,
) -> tuple[list[int], int]:
    taken, size, next_offset = list[Any](), 0, 0
    for phys, tag, length in rows:
        if phys >= log_min and length != BLANK_UNIT_SIZE and (tags is None or tag in tags):
            memory = LOG_MAX - phys <= limits.memory_span_bytes
            most = limits.memory_count if memory else limits.disk_count
            room = limits.memory_bytes if memory else limits.disk_bytes
            full = len(taken) + 1 > min(count_max, most) or size + length > min(bytes_max, room)
            if taken and full:
                break
            taken.append(phys)
            size += length
        next_offset += 1
    return taken, next_offset


@pytest.mark.parametrize("seed", range(60))
def test_selection_equals_that_of_the_naive_loop(seed: int) -> None:
    chance = random.Random(seed)
    phys, rows = chance.randrange(100), []
    for _ in range(chance.randrange(1, 60)):
        length = chance.choice([10, 500, 3_000, BLANK_UNIT_SIZE])
        rows.append((phys, chance.choice([A, B, 0]), length))
        phys += 10
    limits = PullLimits(9_000, 12, 4_000, 5, LOG_MAX - chance.randrange(600))
    count_max, bytes_max = chance.randrange(1, 20), chance.randrange(1, 12_000)
    tags = chance.choice([None, ["a"], ["a", "b"]])
    outcome = select_units(
        units(*rows),
        request(count_max=count_max, bytes_max=bytes_max),
        parse_expression("T", "||".join(tags) if tags else "*"),
        limits,
        log_min=50,
        log_max=LOG_MAX,
    )
    codes = None if tags is None else [java_hash(tag) for tag in tags]
    taken, step = naive_choose(rows, count_max, bytes_max, codes, limits, 50)
    found = [] if outcome.units is None else outcome.units["phys_offset"].tolist()
    assert found == taken
    assert outcome.next_offset == 100 + step
