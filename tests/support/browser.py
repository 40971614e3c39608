"""A browser, and the checker of accessibility that runs in its pages.

Playwright's synchronous functions leave an event loop running in the thread that calls them, where
other tests run loops of their own: here its asynchronous ones run in a thread.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

import pytest

from duemq.client.blocking import LoopThread
from tests.support.requirements import Missing, need_commands, skip_without

if TYPE_CHECKING:
    from playwright.async_api import Browser as Process
    from playwright.async_api import Dialog, Page

Result = TypeVar("Result")
Call = Callable[[], Awaitable[Result]]
Scheme = Literal["light", "dark"]
MOBILE_PX: Final = 500  # narrower screens are those of phones
HAS_FOCUS: Final = "selector => document.activeElement.matches(selector)"
STEPS: Final = """selector => {
    const kinds = 'a[href], button, input, select, textarea, summary';
    const stops = [...document.querySelectorAll(kinds)]
        .filter(one => one.tabIndex >= 0 && !one.disabled && one.type !== 'hidden');
    const target = stops.findIndex(one => one.matches(selector));
    return target - stops.indexOf(document.activeElement) - 2;
}"""  # nearly all, in one call
STEPS_MORE: Final = 60


class Chromium:
    """Chromium without a window, driven by Playwright; a context manager.

    Raises:
        Missing: Chromium or Playwright is not installed.
    """

    def __init__(self) -> None:
        need_commands("chromium")
        try:
            from playwright import async_api
        except ImportError as error:
            raise Missing(f"not installed: {error.name}") from error
        self._start = async_api.async_playwright

    def __enter__(self) -> Chromium:
        self._thread = LoopThread("chromium")
        try:
            self._process = self._thread.open(self._running)
        except BaseException:
            self._thread.close()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self._thread.close()

    @asynccontextmanager
    async def _running(self) -> AsyncIterator[Process]:
        async with self._start() as playwright:
            program = shutil.which("chromium")
            yield await playwright.chromium.launch(
                executable_path=program, args=["--disable-gpu", "--disable-dev-shm-usage"]
            )

    @contextmanager
    def page(self, **options: Any) -> Iterator[Browser]:
        """Yield a page without cookies, caches and history of others; it is closed at the end.

        Args:
            options: Of Playwright's context, such as `timezone_id`.
        """
        context = self._run(lambda: self._process.new_context(no_viewport=True, **options))
        try:
            page = self._run(context.new_page)
            browser = Browser(self._run, page)
            self._run(browser.prepare)
            yield browser
        finally:
            self._run(context.close)

    def _run(self, call: Call[Result]) -> Result:
        """Call a function of Playwright in its thread: some send before they are awaited."""

        async def called() -> Result:
            return await call()

        return self._thread.run(called())


class Browser:
    """Page of a browser, for tests without an event loop.

    Elements are named by selectors, which Playwright evaluates again until it can act: no reference
    to an element survives a navigation or a live update of the page.
    """

    def __init__(self, run: Callable[[Call[Any]], Any], page: Page) -> None:
        self._run, self._page = run, page
        self._faults = list[str]()

    async def prepare(self) -> None:
        """Collect what the page reports; to be called in Playwright's thread."""
        self._devtools = await self._page.context.new_cdp_session(self._page)
        self._page.on("console", lambda message: self._faults.append(message.text))
        self._page.on("pageerror", lambda error: self._faults.append(str(error)))
        self._page.on("dialog", self._on_dialog)

    async def _on_dialog(self, dialog: Dialog) -> None:
        self._faults.append(f"dialog: {dialog.message}")
        await dialog.dismiss()

    def faults(self) -> list[str]:
        """Return what the browser reported since the last call.

        These are errors of scripts, refusals by the policy, failed loads, and dialogs.
        """
        self.evaluate("0")  # its result follows earlier reports of the page
        faults, self._faults = self._faults, []
        return faults

    @property
    def url(self) -> str:
        """Address of the page."""
        return self._page.url

    @property
    def source(self) -> str:
        """HTML text of the document as it is now."""
        return self._run(self._page.content)

    def open(self, url: str) -> None:
        """Load a page."""
        self._run(lambda: self._page.goto(url))

    def evaluate(self, script: str, argument: object = None) -> Any:
        """Return the value of an expression, or the result of a function, in the page."""
        return self._run(lambda: self._page.evaluate(script, argument))

    def wait_for(self, text: str) -> None:
        """Wait until the page shows a text."""
        element = self._page.get_by_text(re.compile(re.escape(text))).first
        self._run(element.wait_for)

    def wait_hidden(self, selector: str) -> None:
        """Wait until the element that a selector selects is hidden."""
        self._run(lambda: self._page.locator(selector).wait_for(state="hidden"))

    @contextmanager
    def without(self, pattern: str) -> Iterator[None]:
        """Let requests fail while the block is active, as without a connection.

        Args:
            pattern: Glob pattern of their addresses.
        """
        self._run(lambda: self._page.route(pattern, lambda route: route.abort()))
        try:
            yield
        finally:
            self._run(lambda: self._page.unroute(pattern))

    def wait_without(self, selector: str) -> None:
        """Wait until the page has no element that a selector selects."""
        element = self._page.locator(selector).first
        self._run(lambda: element.wait_for(state="detached"))

    @contextmanager
    def next_page(self) -> Iterator[None]:
        """Wait after the block until another page has been loaded."""
        self.evaluate("document.documentElement.dataset.former = 1")
        yield
        self.wait_without("html[data-former]")
        self._run(self._page.wait_for_load_state)

    def click(self, selector: str) -> None:
        """Click the element that a selector selects."""
        self._run(lambda: self._page.click(selector))

    def fill(self, values: dict[str, str], form: str = "") -> None:
        """Replace the texts of inputs, given by their names, of the form that a selector selects.

        Args:
            form: Empty: the first form with such an input.
        """

        async def fills() -> None:
            for name, text in values.items():
                await self._page.fill(f"{form} [name={name}]:not([type=hidden])", text)

        self._run(fills)

    def choose(self, name: str, value: str) -> None:
        """Choose an option of the selection with a name."""
        self._run(lambda: self._page.select_option(f"select[name={name}]", value))

    def press(self, key: str, count: int = 1) -> None:
        """Press a key, repeatedly."""

        async def presses() -> None:
            for _ in range(count):
                await self._page.keyboard.press(key)

        self._run(presses)

    def type(self, text: str) -> None:
        """Type a text into the element that has the focus."""
        self._run(lambda: self._page.keyboard.type(text))

    def tab_to(self, selector: str) -> None:
        """Press the Tab key until an element has the focus."""
        steps = self.evaluate(STEPS, selector)
        for count in (max(steps, 1), *[1] * STEPS_MORE):
            self.press("Tab", count)
            if self.evaluate(HAS_FOCUS, selector):
                return
        raise AssertionError(f"the Tab key does not reach {selector}")

    def resize(self, width: int, height: int = 900) -> None:
        """Set the size of the page in px, below the minimum width of a window too."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1}
        metrics["mobile"] = width < MOBILE_PX
        self._run(lambda: self._devtools.send("Emulation.setDeviceMetricsOverride", metrics))

    def emulate(self, scheme: Scheme, media: Literal["screen", "print"] = "screen") -> None:
        """Set the preferred colour scheme and the medium of the open page."""
        self._run(lambda: self._page.emulate_media(color_scheme=scheme, media=media))

    def set_clock(self, time_ms: int) -> None:
        """Let the clock of the browser begin at a time, from the next page on."""
        self._run(lambda: self._page.clock.install(time=time_ms / 1_000))

    def set_cookie(self, name: str, value: str, url: str) -> None:
        """Set a cookie of the path of a URL."""
        context = self._page.context
        self._run(lambda: context.add_cookies([{"name": name, "value": value, "url": url}]))

    def screenshot(self) -> bytes:
        """Return a picture of the visible part of the page, as PNG."""
        return self._run(self._page.screenshot)


@pytest.fixture(scope="session")
def chromium() -> Iterator[Chromium]:
    """Chromium of this run."""
    with skip_without():
        process = Chromium()
    with process:
        yield process


@pytest.fixture(scope="module")
def browser(chromium: Chromium) -> Iterator[Browser]:
    """Page of a test file."""
    with chromium.page() as page:
        yield page


@pytest.fixture(scope="session")
def axe() -> str:
    """Source of axe, which checks the accessibility of a page."""
    from tests.duemq.console.axe import axe_source

    with skip_without():
        return axe_source()
