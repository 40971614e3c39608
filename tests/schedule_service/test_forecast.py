"""Forecast of level messages: each counts in the bin of its due time, without reading all units."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from delayed_delivery.forecast_bins import Span
from delayed_delivery.steps import at_once
from duemq_common.errors import RequestError
from message_store.layout import UNIT
from schedule_service import forecast as module
from schedule_service.cursor import LevelCursor, find_cuts
from schedule_service.forecast import forecast_view
from schedule_service.level import Level
from tests.support.naive_forecast import naive_forecast

NOW_MS, SECOND_MS = 1_000_000, 1_000


class Queues:
    """Queue of one level, as due times; units before `first` are removed.

    Attributes:
        read: Number of units read.
    """

    def __init__(self, due_ms: npt.NDArray[np.int64], first: int = 0, file_units: int = 50) -> None:
        self._units = np.zeros(due_ms.size, UNIT)
        self._units["tags_code"] = due_ms
        self._first, self._file_units, self.read = first, file_units, 0

    def units(self, level: int, offset: int, count_max: int) -> Any:
        """Return units up to the end of a file."""
        end = min(offset + count_max, (offset // self._file_units + 1) * self._file_units)
        units = self._units[offset:end] if offset >= self._first else self._units[:0]
        self.read += units.size
        return units

    @staticmethod
    def due_ms(level: int, units: Any) -> npt.NDArray[np.int64]:
        return units["tags_code"].astype(np.int64)


def level_of(due_ms: npt.NDArray[np.int64]) -> Level:
    """Return a level whose units are all pending."""
    level = Level(3, LevelCursor(3))
    cuts = find_cuts(due_ms, 0, int(due_ms[0]))
    level.cursor.extend(0, int(due_ms[0]), due_ms.size, cuts)
    return level


def forecast_of(queues: Any, level: Level, span: Span) -> list[int]:
    fields = {"from_ms": span.from_ms, "width_ms": span.width_ms, "count": span.count}
    texts = {name: str(value) for name, value in fields.items()}
    response: Any = at_once(forecast_view(queues, {level.level: level}, texts, NOW_MS))
    assert response["pending"] == level.cursor.pending
    assert response["pos"] is None
    return [response["before"], *response["counts"], response["later"]]


@pytest.mark.parametrize("settled_share", [0.0, 0.02, 0.7])
@pytest.mark.parametrize("piece_units", [1, 8, 4_096])
@pytest.mark.parametrize("is_set_back", [False, True])
def test_each_message_counts_in_the_bin_of_its_due_time(
    settled_share: float, piece_units: int, is_set_back: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PIECE_UNITS", piece_units)
    choose = random.Random(piece_units)
    for _ in range(10):
        due_ms = np.array([choose.randrange(60 * SECOND_MS) for _ in range(400)], np.int64)
        due_ms.sort()
        if is_set_back:
            due_ms[250:] = due_ms[100:250]
        level = level_of(due_ms + NOW_MS)
        settled = np.flatnonzero([choose.random() < settled_share for _ in range(400)])
        level.cursor.settle_all(settled)
        left = np.delete(due_ms + NOW_MS, settled).tolist()
        width_ms = choose.choice([1, 7, SECOND_MS, 90 * SECOND_MS])
        start_ms = NOW_MS + choose.choice([-5 * SECOND_MS, 0, 20 * SECOND_MS])
        span = Span(start_ms, width_ms, choose.choice([1, 60]))
        assert forecast_of(Queues(due_ms + NOW_MS), level, span) == naive_forecast(left, span)


def test_units_between_two_of_one_bin_are_not_read() -> None:
    due_ms = np.arange(1_000_000, dtype=np.int64) * 10 + NOW_MS + 1
    queues, level = Queues(due_ms, file_units=1_000_000), level_of(due_ms)
    level.cursor.settle(999_999)
    span = Span(NOW_MS, 1_000 * SECOND_MS, 20)
    assert forecast_of(queues, level, span) == [0, *[100_000] * 9, 99_999, *[0] * 11]
    assert queues.read < 10 * 2 * module.PIECE_UNITS


def test_removed_units_are_not_counted() -> None:
    due_ms = np.arange(100, dtype=np.int64) + NOW_MS + 1
    level, span = level_of(due_ms), Span(NOW_MS, 30, 4)
    texts = {"from_ms": str(NOW_MS), "width_ms": "30", "count": "4"}
    queues: Any = Queues(due_ms, first=150)
    response: Any = at_once(forecast_view(queues, {3: level}, texts, NOW_MS))
    assert response["counts"] == [0] * span.count


@pytest.mark.parametrize(
    "fields", [{"count": "10001"}, {"width_ms": "-1"}, {"from_ms": str(1 << 63)}, {"count": "x"}]
)
def test_invalid_fields_are_refused(fields: dict[str, str]) -> None:
    queues: Any = None
    with pytest.raises(RequestError, match="is not a whole number"):
        at_once(forecast_view(queues, {}, fields, NOW_MS))
