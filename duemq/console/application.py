"""Application of the console: pages, login, events, files.

request --> login (cookie), role --> page(call) --> blocks --> template
                                       ^ duemq.client, signed with the account of the login
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Mapping
from functools import partial
from typing import Final
from urllib.parse import urlencode

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Mount, Route

from duemq.auth.signature import Credentials
from duemq.client.errors import Refused
from duemq.console.blocks import Key, Notice, PageContent
from duemq.console.bulk import BulkJobs
from duemq.console.call import Load, PageCall, PageEntry
from duemq.console.catalogue import LANGUAGES, language_of, translator
from duemq.console.forms import form_of
from duemq.console.logins import Login, LoginRole, Logins, role_of
from duemq.console.operating_entries import OPERATING_ENTRIES
from duemq.console.pages import bulk, schedules
from duemq.console.pages.decisions import confirmation, decide
from duemq.console.pages.inventory import group, groups, topics
from duemq.console.pages.inventory import schedules as list_of_schedules
from duemq.console.pages.message import message
from duemq.console.pages.overview import overview
from duemq.console.pages.timers import timers
from duemq.console.rendering import HEADERS, HERE, render, text_of
from duemq.console.shared_pages import SharedPages
from duemq.http.admission import Admission
from duemq.http.problems import Problem, problem_of
from duemq.http.sessions import AccountSession, Sessions
from duemq_common import page_style
from duemq_common.clock import SystemClock

ROOT: Final = "/console"
COOKIE, LANGUAGE_COOKIE = "duemq_session", "duemq_language"
EVENTS_MAX: Final = 64  # pages that are sent again when they change
EVENT_INTERVAL_S: Final = 5.0
PROGRESS_INTERVAL_S: Final = 0.5
FILES: Final = {
    "console.css": "text/css",
    "htmx.min.js": "text/javascript",
    "sse.min.js": "text/javascript",
    "live.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}
ENTRIES: Final = (
    PageEntry("/", "nav.overview", overview),
    PageEntry("/timers", "nav.timers", timers),
    PageEntry("/bulk", "nav.bulk", bulk.jobs, LoginRole.OPERATOR, bulk.prepare),
    PageEntry(
        "/bulk/{name}",
        "",
        bulk.job,
        LoginRole.OPERATOR,
        bulk.act,
        interval_s=PROGRESS_INTERVAL_S,
    ),
    PageEntry("/messages/{name:path}", "", message),
    PageEntry("/topics", "nav.topics", topics),
    PageEntry("/groups", "nav.groups", groups),
    PageEntry("/groups/{name:path}", "", group),
    PageEntry("/schedules", "nav.schedules", list_of_schedules),
    PageEntry("/schedules/{name:path}", "", schedules.schedule),
    PageEntry("/new-schedule", "", schedules.new, LoginRole.OPERATOR, schedules.create),
    PageEntry("/schedule-changes", "", schedules.confirmation, LoginRole.OPERATOR, schedules.act),
    *OPERATING_ENTRIES,
    PageEntry("/decisions", "", confirmation, LoginRole.OPERATOR, decide),
)
UNCHANGED: Final = ": unchanged\n\n"
"""Comment in a stream, so that a proxy does not end it."""
Handler = Callable[[Request], Awaitable[Response]]


class Console:
    """Handlers of the console."""

    def __init__(
        self,
        admission: Admission,
        sessions: Sessions,
        *,
        event_interval_s: float = EVENT_INTERVAL_S,
    ) -> None:
        self._admission, self._sessions = admission, sessions
        clock = SystemClock()
        self._logins = Logins(clock.monotonic_s)
        self._event_interval_s = event_interval_s
        self._now_s, self._live_pages = clock.monotonic_s, SharedPages()
        self._jobs = BulkJobs(clock.now_ms, clock.monotonic_s)

    def routes(self) -> list[BaseRoute]:
        """Return the routes of the console."""
        routes: list[BaseRoute] = [
            Route("/login", self._checked(self.login), methods=["GET", "POST"]),
            Route("/logout", self._checked(self.log_out), methods=["POST"]),
            Route("/language", self._checked(self.choose_language), methods=["POST"]),
            Route("/static/{name}", self._checked(self.file), methods=["GET"]),
        ]
        for entry in ENTRIES:
            routes.append(Route(entry.path, self._checked(partial(self.page, entry))))
            path = f"/events{entry.path}"
            routes.append(Route(path, self._checked(partial(self.events, entry))))
            if entry.action is not None:
                action = self._checked(partial(self.act, entry, entry.action))
                routes.append(Route(entry.path, action, methods=["POST"]))
        errors = {404: self._missing, 405: self._missing}
        application = Starlette(routes=routes, exception_handlers=errors)
        return [Route("/", _redirected), Mount(ROOT, app=application)]

    def _checked(self, handler: Handler) -> Handler:
        """Return a handler that responds to errors with a page."""

        async def handle(request: Request) -> Response:
            try:
                return await handler(request)
            except Exception as error:
                return self._problem_page(request, problem_of(error))

        return handle

    # -- pages ----------------------------------------------------------------------------------

    async def page(self, entry: PageEntry, request: Request) -> Response:
        """Return a page, or send the browser to the login."""
        login = self._login_of(request)
        if login is None:
            return _to_login(request)
        _check_role(login, entry.role)
        with self._sessions.session(login.credentials) as session:
            page = await entry.load(self._call(request, session, login))
        query = f"?{request.url.query}" if request.url.query else ""
        events = f"{ROOT}/events{request.url.path.removeprefix(ROOT)}{query}"
        return self._rendered(
            request, "page.html", login, page=page, current=entry.path, events=events
        )

    async def act(self, entry: PageEntry, action: Load, request: Request) -> Response:
        """Take the action of a form, and return the page with its results."""
        login, form = await self._posted(request)
        _check_role(login, entry.role)
        with self._sessions.session(login.credentials) as session:
            page = await action(self._call(request, session, login, form))
        if page.location:
            return RedirectResponse(f"{ROOT}{page.location}", 303, HEADERS)
        return self._rendered(request, "page.html", login, page=page, current=entry.path, events="")

    async def events(self, entry: PageEntry, request: Request) -> Response:
        """Return a stream with the blocks of a page whenever they change."""
        if self._live_pages.streams >= EVENTS_MAX:
            return Response(status_code=204)
        login = self._login_of(request)
        if login is not None:
            _check_role(login, entry.role)
        stream = self._stream(entry, request, login)
        headers = {**HEADERS, "X-Accel-Buffering": "no"}  # nginx would collect the events
        return StreamingResponse(stream, media_type="text/event-stream", headers=headers)

    async def _stream(
        self, entry: PageEntry, request: Request, login: Login | None
    ) -> AsyncIterator[str]:
        former, interval_s = "", entry.interval_s or self._event_interval_s

        async def rendered() -> tuple[str, bool]:
            assert login is not None
            page = await self._loaded(entry, request, login)
            return _live_text(request, page, login), page.live

        async with self._live_pages.stream(_page_key(request, login)) as shared:
            while login is not None and self._login_of(request, touch=False) is not None:
                if await self._stops_within(shared.wait_s(interval_s, self._now_s())):
                    return  # the browser connects again
                await shared.load(interval_s, self._now_s, rendered)
                yield event_of("blocks", shared.text) if shared.text != former else UNCHANGED
                former = shared.text
                if not shared.is_live:
                    yield event_of("end", "end")
                    return
            ended = Notice(Key("login.ended"), state="bad")
            yield event_of("blocks", _live_text(request, PageContent(Key("login.ended"), [ended])))
            yield event_of("end", "end")

    async def _stops_within(self, seconds: float) -> bool:
        """Return whether the server stops within a time."""
        try:
            async with asyncio.timeout(seconds):
                return await self._sessions.stopping.wait()
        except TimeoutError:
            return False

    async def _loaded(self, entry: PageEntry, request: Request, login: Login) -> PageContent:
        """Return a page for its stream; if it cannot be loaded now, a page that says so."""
        try:
            with self._sessions.session(login.credentials) as session:
                return await entry.load(self._call(request, session, login))
        except Exception as error:
            details = problem_of(error).details
            notice = Notice(Key("value.unknown"), f"{details.title}. {details.detail}", "bad")
            return PageContent(Key("value.unknown"), [notice], live=details.status >= 500)

    def _call(
        self,
        request: Request,
        session: AccountSession,
        login: Login,
        form: Mapping[str, str] | None = None,
    ) -> PageCall:
        query = request.query_params if form is None else form
        text = translator(_language(request))
        return PageCall(session, login, query, request.path_params, text, self._jobs, ROOT)

    def _rendered(
        self,
        request: Request,
        template: str,
        login: Login | None,
        *,
        status: int = 200,
        **values: object,
    ) -> Response:
        language = _language(request)
        here = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        page = values.get("page")
        title = translator(language)(getattr(page, "title", "")) if page else ""
        shown: dict[str, object] = {"title": title, "here": here, "root": ROOT, "login": login}
        shown["entries"] = [
            one for one in ENTRIES if one.title and login and login.role >= one.role
        ]
        return render(template, language, status=status, **(shown | values))

    def _problem_page(self, request: Request, problem: Problem) -> Response:
        details = problem.details
        return self._rendered(
            request,
            "problem.html",
            None,
            status=details.status,
            title=details.title,
            detail=details.detail,
        )

    async def _missing(self, request: Request, error: Exception) -> Response:
        title = "There is no such page"
        return self._problem_page(request, Problem(404, "no-such-path", title, request.url.path))

    # -- logins ---------------------------------------------------------------------------------

    def _login_of(self, request: Request, *, touch: bool = True) -> Login | None:
        """Return the login of a request; None: the browser must log in.

        Raises:
            Problem: There are no accounts, and the source of the request is not allowed.
        """
        if not self._admission.has_accounts:
            self._admission.admit(request.headers, _address(request))
            return Login(None, LoginRole.VIEWER)
        name = request.cookies.get(COOKIE, "")
        login = self._logins.find(name, touch=touch)
        if login is None:
            return None
        assert login.credentials is not None
        if not self._admission.is_valid(login.credentials):
            self._logins.end(name)
            return None
        return login

    async def login(self, request: Request) -> Response:
        """Return the form of the login, or start a login."""
        if request.method == "GET":
            to = request.query_params.get("to", "")
            return self._rendered(request, "login.html", None, title="Login", to=to, failure="")
        form = await form_of(request)
        credentials = Credentials(form.get("access_key", ""), form.get("secret", ""))
        try:
            self._admission.check_account(credentials, _address(request))
            with self._sessions.session(credentials) as session:
                role = await self._role_of(session, _address(request))
        except Exception as error:
            details = problem_of(error).details
            values = {"title": "Login", "to": form.get("to", ""), "failure": details.detail}
            return self._rendered(request, "login.html", None, status=details.status, **values)
        response = RedirectResponse(_target(form.get("to", "")), 303, HEADERS)
        response.set_cookie(
            COOKIE,
            self._logins.start(credentials, role),
            path=ROOT,
            secure=request.url.scheme == "https",
            httponly=True,
            samesite="strict",
        )
        return response

    async def _role_of(self, session: AccountSession, address: str) -> LoginRole:
        """Return the role of an account; a refusal counts as a failed login of the address."""
        try:
            role = await role_of(session)
        except Refused:
            self._admission.count_failure(address)
            raise
        return min(role, LoginRole.VIEWER) if self._admission.is_read_only else role

    async def log_out(self, request: Request) -> Response:
        """End a login."""
        await self._posted(request)
        self._logins.end(request.cookies.get(COOKIE, ""))
        response = RedirectResponse(f"{ROOT}/login", 303, HEADERS)
        response.delete_cookie(COOKIE, path=ROOT)
        return response

    async def _posted(self, request: Request) -> tuple[Login, dict[str, str]]:
        """Return the login and the fields of a form that was made for it.

        Raises:
            Problem: The form was not made for this login.
        """
        login, form = self._login_of(request), await form_of(request)
        if login is None or not login.accepts(form.get("csrf", "")):
            detail = "the login has expired, or the form was not made for it: open the page again"
            raise Problem(403, "csrf", "The form is not valid", detail)
        return login, form

    # -- language and files ---------------------------------------------------------------------

    async def choose_language(self, request: Request) -> Response:
        """Keep the chosen language in a cookie."""
        form = await form_of(request)
        response = RedirectResponse(_target(form.get("to", "")), 303, HEADERS)
        if form.get("language") in LANGUAGES:
            response.set_cookie(LANGUAGE_COOKIE, form["language"], path=ROOT, samesite="lax")
        return response

    async def file(self, request: Request) -> Response:
        """Return a style, script or image."""
        name = request.path_params["name"]
        headers = dict(HEADERS) | {"Cache-Control": "max-age=3600"}
        if name == "page.css":
            return Response(page_style.STYLE, headers=headers, media_type="text/css")
        if name not in FILES:
            raise Problem(404, "no-such-path", "There is no such page", name)
        return FileResponse(HERE / "static" / name, headers=headers, media_type=FILES[name])


def console_routes(admission: Admission, sessions: Sessions) -> list[BaseRoute]:
    """Return the routes of the console."""
    return Console(admission, sessions).routes()


def event_of(name: str, text: str) -> str:
    """Return a server-sent event."""
    data = "".join(f"data: {line}\n" for line in text.splitlines())
    return f"event: {name}\n{data}\n"


def _page_key(request: Request, login: Login | None) -> Hashable:
    """Return what the text of a live page depends on: account, form key, address, language."""
    account = (login.name, login.csrf) if login is not None else None
    return account, request.url.path, request.url.query, _language(request)


def _live_text(request: Request, page: PageContent, login: Login | None = None) -> str:
    """Return the blocks of a page in the language of the request."""
    return text_of("live.html", _language(request), page=page, login=login, root=ROOT)


def _check_role(login: Login, role: LoginRole) -> None:
    if login.role < role:
        detail = f"the page needs the role {role.name.lower()}"
        raise Problem(403, "role", "The account may not see this page", detail)


def _address(request: Request) -> str:
    return request.client.host if request.client else ""


def _language(request: Request) -> str:
    chosen = request.cookies.get(LANGUAGE_COOKIE, "")
    return language_of(chosen, request.headers.get("accept-language", ""))


def _target(to: str) -> str:
    """Return a path of the console to go to; not one of another site."""
    return to if to.startswith(f"{ROOT}/") else f"{ROOT}/"


def _to_login(request: Request) -> Response:
    here = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    return RedirectResponse(f"{ROOT}/login?{urlencode({'to': here})}", 303, HEADERS)


async def _redirected(request: Request) -> Response:
    return RedirectResponse(f"{ROOT}/", 307, HEADERS)
