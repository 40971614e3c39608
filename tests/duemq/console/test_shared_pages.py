"""Live pages that several streams send."""

from __future__ import annotations

import asyncio

from duemq.console.shared_pages import SharedPages

INTERVAL_S = 5.0


def test_a_page_is_rendered_once_for_all_streams_of_an_update() -> None:
    async def main() -> None:
        pages, now_s, rendered = SharedPages(), [100.0], list[float]()

        async def render() -> tuple[str, bool]:
            await asyncio.sleep(0)  # as requests to brokers: other streams run meanwhile
            rendered.append(now_s[0])
            return f"page of {now_s[0]:.0f}", True

        async def stream(key: str) -> str:
            async with pages.stream(key) as page:
                await page.load(INTERVAL_S, lambda: now_s[0], render)
                return page.text

        async with pages.stream("a") as page:
            assert page.wait_s(INTERVAL_S, now_s[0]) == INTERVAL_S
            texts = await asyncio.gather(*(stream("a") for _ in range(5)))
            assert (texts, rendered) == (["page of 100"] * 5, [100.0])
            now_s[0] += 2.0  # a stream that begins later joins the next update
            assert page.wait_s(INTERVAL_S, now_s[0]) == 3.0
            now_s[0] += 3.0
            texts = await asyncio.gather(*(stream("a") for _ in range(5)))
            assert (texts, rendered) == (["page of 105"] * 5, [100.0, 105.0])
            assert await stream("b") == "page of 105"
            assert len(rendered) == 3
        assert pages.streams == 0

    asyncio.run(main())


def test_a_stream_that_ends_while_it_loads_leaves_the_update_to_others() -> None:
    async def main() -> None:
        pages, started = SharedPages(), asyncio.Event()

        async def never() -> tuple[str, bool]:
            started.set()
            await asyncio.Event().wait()
            return "", False

        async def render() -> tuple[str, bool]:
            return "text", True

        async with pages.stream("a") as page:
            first = asyncio.create_task(page.load(INTERVAL_S, lambda: 7.0, never))
            await started.wait()
            second = asyncio.create_task(page.load(INTERVAL_S, lambda: 7.0, render))
            await asyncio.sleep(0)
            first.cancel()
            await second
            assert (page.text, page.is_live, page.loaded_s) == ("text", True, 7.0)

    asyncio.run(main())
