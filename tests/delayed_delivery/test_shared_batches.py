"""Shared batches: which items share one, and what each of them gets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from delayed_delivery.shared_batches import SharedBatches
from duemq_common.errors import StoreError


class Squares:
    """Squares of numbers; a negative number fails, and zero has no result among others."""

    def __init__(self, items_max: int = 3) -> None:
        self.batches: list[tuple[str, list[int]]] = []
        self.shared = SharedBatches(self._process, asyncio.Lock(), items_max)

    async def _process(self, kind: str, items: list[int]) -> list[int | None]:
        self.batches.append((kind, items))
        await asyncio.sleep(0)
        if min(items) < 0:
            raise StoreError("negative")
        return [None if item == 0 and len(items) > 1 else item * item for item in items]

    def add(self, *items: int, kind: str = "k") -> list[asyncio.Future[int]]:
        return [self.shared.add(kind, item, item) for item in items]


def at_loop(work: Callable[[Squares], Coroutine[Any, Any, None]]) -> Squares:
    async def main() -> Squares:
        squares = Squares()
        await work(squares)
        return squares

    return asyncio.run(main())


@pytest.mark.parametrize(
    ("items", "batches"),
    [
        ((1, 2), [[1, 2]]),
        ((1, 2, 3, 4), [[1, 2, 3], [4]]),
        ((1, 1, 2), [[1], [1, 2]]),
        ((0, 2, 0), [[0, 2], [0], [0]]),
        ((0,), [[0]]),
    ],
)
def test_items_that_wait_share_a_batch(items: tuple[int, ...], batches: list[list[int]]) -> None:
    async def work(squares: Squares) -> None:
        assert await asyncio.gather(*squares.add(*items)) == [item * item for item in items]

    assert sorted(each for _, each in at_loop(work).batches) == sorted(batches)


def test_kinds_do_not_share_a_batch_and_run_in_the_order_of_arrival() -> None:
    async def work(squares: Squares) -> None:
        futures = squares.add(1, kind="b") + squares.add(2, kind="a") + squares.add(3, kind="b")
        assert await asyncio.gather(*futures) == [1, 4, 9]

    assert at_loop(work).batches == [("b", [1, 3]), ("a", [2])]


def test_an_item_that_fails_has_no_effect_on_the_others() -> None:
    async def work(squares: Squares) -> None:
        results = await asyncio.gather(*squares.add(1, -1, 2), return_exceptions=True)
        assert (results[0], str(results[1]), results[2]) == (1, "negative", 4)

    assert at_loop(work).batches == [("k", [1, -1, 2]), ("k", [1]), ("k", [-1]), ("k", [2])]


def test_a_request_that_is_cancelled_has_no_effect_on_the_others() -> None:
    async def work(squares: Squares) -> None:
        first, second = squares.add(0, 2)
        first.cancel()
        assert await second == 4

    assert at_loop(work).batches == [("k", [0, 2])]


def test_an_error_of_the_code_is_raised_at_every_request() -> None:
    async def work(squares: Squares) -> None:
        results = await asyncio.gather(*squares.add(1, "x", 2), return_exceptions=True)
        assert [type(each) for each in results] == [TypeError] * 3

    at_loop(work)
