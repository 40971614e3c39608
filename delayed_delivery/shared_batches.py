"""Batches of requests that wait together: one lookup and one append for all of them.

    waiting   a request joins the batch of its kind; the first one starts the batch
    running   one batch at a time, in the order of arrival; the next requests start another batch
    alone     an item that has no result of its own in the batch is processed again without others

The result of an item is that of a batch of this item alone. Requests of all connections share a
batch: their permissions are checked before, and no result depends on the requester.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Generic, TypeAlias, TypeVar

from duemq_common.errors import StoreError

Kind = TypeVar("Kind", bound=Hashable)
Item = TypeVar("Item")
Result = TypeVar("Result")
Batch: TypeAlias = "dict[Hashable, tuple[Item, asyncio.Future[Result]]]"


class SharedBatches(Generic[Kind, Item, Result]):
    """Batches of one component. Belongs to the event loop's thread.

    Args:
        process: Returns the results of a batch of items of one kind; None for an item whose result
            depends on the other items.
        turn: Held by the batch that runs.
        items_max: Maximum number of items of a batch.
    """

    def __init__(
        self,
        process: Callable[[Kind, list[Item]], Awaitable[Sequence[Result | None]]],
        turn: AbstractAsyncContextManager[None],
        items_max: int,
    ) -> None:
        self._process, self._turn, self._items_max = process, turn, items_max
        self._waiting: dict[Kind, Batch[Item, Result]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, kind: Kind, item: Item, name: Hashable) -> asyncio.Future[Result]:
        """Return the future of an item's result; items of the same name do not share a batch.

        The future raises StoreError if the item cannot be processed.
        """
        batch = self._waiting.get(kind)
        if batch is None or name in batch or len(batch) == self._items_max:
            batch = self._waiting[kind] = {}
            task = asyncio.create_task(self._run(kind, batch), name="decisions")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        batch[name] = item, future
        return future

    async def _run(self, kind: Kind, batch: Batch[Item, Result]) -> None:
        async with self._turn:
            await asyncio.sleep(0)  # other requests run first, and may join
            if self._waiting.get(kind) is batch:
                del self._waiting[kind]
            items = list(batch.values())
            results = await self._results(kind, [item for item, _ in items])
        for (_, future), result in zip(items, results, strict=True):
            _settle(future, result)
        for (item, future), result in zip(items, results, strict=True):
            if result is None and not future.done():
                async with self._turn:
                    await asyncio.sleep(0)
                    _settle(future, (await self._results(kind, [item]))[0])

    async def _results(
        self, kind: Kind, items: list[Item]
    ) -> Sequence[Result | StoreError | Exception | None]:
        try:
            return await self._process(kind, items)
        except StoreError as error:  # perhaps because of one item
            return [error] if len(items) == 1 else [None] * len(items)
        except Exception as error:
            return [error] * len(items)


def _settle(future: asyncio.Future[Result], result: Result | Exception | None) -> None:
    """Set the result of a future, unless it is None or the request was cancelled."""
    if result is None or future.done():
        return
    if isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)
