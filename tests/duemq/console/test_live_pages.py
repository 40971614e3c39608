"""Pages that are updated while they are open: their end, and what they show without updates."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path

import httpx
import pytest
from starlette.routing import BaseRoute

from duemq.console import application, logins
from duemq.console.application import Console
from duemq.http import port_server
from duemq.http.admission import Admission
from duemq.http.sessions import Sessions
from tests.duemq.console.rig import ACCOUNT_KEYS, VIEWER, Served, csrf_of, served, with_accounts
from tests.duemq.http.rig import TIMEOUT_S, api
from tests.support.browser import Browser, Chromium

ENDED = "The login has ended."
STALE = "document.getElementById('stale').hidden"


def examined_every(monkeypatch: pytest.MonkeyPatch, interval_s: float) -> None:
    """Let live pages be examined every `interval_s` seconds."""

    def routes(admission: Admission, sessions: Sessions) -> list[BaseRoute]:
        return Console(admission, sessions, event_interval_s=interval_s).routes()

    monkeypatch.setattr(application, "console_routes", routes)


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let live pages be examined all the time."""
    examined_every(monkeypatch, 0.01)


@contextmanager
def logged_in(chromium: Chromium, running: Served) -> Iterator[Browser]:
    """Yield a browser with the login of a viewer, at the page of levels."""
    with chromium.page() as browser:
        browser.open(f"{running.url}/console/levels")
        browser.fill({"access_key": VIEWER.access_key, "secret": VIEWER.secret})
        with browser.next_page():
            browser.press("Enter")
        assert browser.url.endswith("/levels")
        yield browser


def test_a_stop_does_not_wait_for_open_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(port_server, "DRAIN_S", 10 * TIMEOUT_S)
    examined_every(monkeypatch, 10 * TIMEOUT_S)

    async def main() -> None:
        async with AsyncExitStack() as stack:
            broker, _ = await stack.enter_async_context(api(tmp_path))
            base = f"http://127.0.0.1:{broker.console_port}/console"
            async with (
                httpx.AsyncClient(base_url=base, timeout=TIMEOUT_S) as client,
                client.stream("GET", "/events/levels") as stream,
            ):
                assert stream.headers["x-accel-buffering"] == "no"
                async with asyncio.timeout(TIMEOUT_S):
                    await stack.aclose()
                assert [line async for line in stream.aiter_lines()] == []

    asyncio.run(main())


def test_a_page_that_does_not_change_keeps_its_connection(tmp_path: Path, fast: None) -> None:
    with (
        served(tmp_path) as running,
        running.client() as client,
        client.stream("GET", "/events/levels") as stream,
    ):
        lines = (line for line in stream.iter_lines() if line)
        assert next(lines) == "event: blocks"
        assert next(line for line in lines if not line.startswith("data:")) == ": unchanged"


def test_the_page_of_an_ended_login_is_no_longer_updated(tmp_path: Path, fast: None) -> None:
    with served(tmp_path, with_accounts, **ACCOUNT_KEYS) as running:
        with running.logged_in(VIEWER) as client:
            with client.stream("GET", "/events/levels") as stream:
                client.post("/logout", data={"csrf": csrf_of(client.get("/levels").text)})
                events = stream.read().decode()
            assert ENDED in events
            assert events.endswith("event: end\ndata: end\n\n")
        with running.client() as stranger:
            events = stranger.get("/events/levels").text
        assert ENDED in events
        assert "Levels" not in events


@pytest.mark.extended
def test_an_expired_login_is_announced_in_the_browser(
    chromium: Chromium, tmp_path: Path, fast: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        served(tmp_path, with_accounts, **ACCOUNT_KEYS) as running,
        logged_in(chromium, running) as browser,
    ):
        monkeypatch.setattr(logins, "IDLE_S", -1.0)
        browser.wait_for(ENDED)
        monkeypatch.undo()
        assert browser.faults() == []
        with browser.next_page():
            browser.click("nav a[href$='/timers']")
        assert browser.url.endswith("/login?to=%2Fconsole%2Ftimers")
        browser.fill({"access_key": VIEWER.access_key, "secret": VIEWER.secret})
        with browser.next_page():
            browser.press("Enter")
        assert browser.url.endswith("/console/timers")


@pytest.mark.extended
def test_a_page_without_updates_says_so(chromium: Chromium, tmp_path: Path, fast: None) -> None:
    with (
        served(tmp_path, with_accounts, **ACCOUNT_KEYS) as running,
        logged_in(chromium, running) as browser,
    ):
        assert browser.evaluate(STALE)
        with browser.without("**/events/**"):
            browser.open(f"{running.url}/console/levels")
            browser.wait_for("Not updated now")
            assert not browser.evaluate(STALE)
            browser.faults()
        browser.wait_hidden("#stale")
        assert browser.faults() == []
