"""Live pages that several streams send: each is loaded and rendered once for all of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field


@dataclass(slots=True)
class SharedPage:
    """Text of one page for the streams that send it.

    Attributes:
        streams: Number of streams.
        loaded_s: Monotonic time at which it was loaded; None: not yet.
        is_live: Whether the page is updated again.
    """

    streams: int = 0
    loaded_s: float | None = None
    text: str = ""
    is_live: bool = True
    _loading: asyncio.Lock = field(default_factory=asyncio.Lock)

    def wait_s(self, interval_s: float, now_s: float) -> float:
        """Return the time until the next update, at which all streams load the page."""
        if self.loaded_s is None:
            return interval_s
        return min(max(self.loaded_s + interval_s - now_s, 0.0), interval_s)

    async def load(
        self,
        interval_s: float,
        now_s: Callable[[], float],
        render: Callable[[], Awaitable[tuple[str, bool]]],
    ) -> None:
        """Load the page, unless another stream has done it for this update.

        Args:
            now_s: Returns a monotonic time in seconds.
            render: Returns the text of the page, and whether it is updated again.
        """
        async with self._loading:
            if self.loaded_s is not None and now_s() - self.loaded_s < interval_s / 2:
                return
            self.text, self.is_live = await render()
            self.loaded_s = now_s()


class SharedPages:
    """Pages that streams send now, by what their text depends on."""

    def __init__(self) -> None:
        self._pages: dict[Hashable, SharedPage] = {}

    @property
    def streams(self) -> int:
        """Number of streams of all pages."""
        return sum(page.streams for page in self._pages.values())

    @asynccontextmanager
    async def stream(self, key: Hashable) -> AsyncIterator[SharedPage]:
        """Yield the page of a key for one stream; the last stream removes it."""
        page = self._pages.setdefault(key, SharedPage())
        page.streams += 1
        try:
            yield page
        finally:
            page.streams -= 1
            if not page.streams:
                del self._pages[key]
