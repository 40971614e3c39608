"""The console over HTTP: logins, roles, forms, languages, unknown states, files."""

from __future__ import annotations

import asyncio
import hashlib
import html
import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from duemq.auth.signature import Credentials
from duemq.broker.broker import Broker
from duemq.client import Admin, Message, Producer, PullConsumer
from duemq.client.admin.topics import TopicSettings
from duemq.console import catalogue
from duemq.console.logins import (
    ACCOUNT_LOGINS_MAX,
    AGE_MAX_S,
    IDLE_S,
    LOGINS_MAX,
    LoginRole,
    Logins,
)
from duemq.console.pages import inventory
from duemq.console.rendering import HERE
from duemq.net.view_names import LEVELS_VIEW
from duemq_common.codes import RequestCode
from tests.duemq.console.rig import (
    ACCOUNT_KEYS,
    OPERATOR,
    VIEWER,
    Served,
    csrf_of,
    served,
    with_accounts,
)
from tests.duemq.http.rig import api
from tests.support.accounts import ROOT
from tests.support.running_broker import TIMEOUT_S, connected

CHINESE = {"Accept-Language": "zh-CN,zh;q=0.9,en;q=0.8"}
INLINE = re.compile(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son[a-z]+=|javascript:", re.I)


@pytest.fixture(scope="module")
def accounts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Console of a broker with accounts."""
    root = tmp_path_factory.mktemp("accounts")
    with served(root, with_accounts, **ACCOUNT_KEYS) as running:
        yield running


def test_without_accounts_the_console_is_read_only(shared_console: Served) -> None:
    with shared_console.client() as client:
        page = client.get("/")
        assert page.status_code == 200
        assert "Pending timers" in page.text
        assert 'name="csrf"' not in page.text
        assert client.post("/logout", data={"csrf": ""}).status_code == 403
        rebound = client.get("/", headers={"Host": "console.example"})
        assert rebound.status_code == 403
        assert client.get(f"{shared_console.url}/").url.path == "/console/"


def test_pages_have_neither_inline_scripts_nor_styles(shared_console: Served) -> None:
    with shared_console.client() as client:
        for path in ("/", "/timers", "/messages/k1", "/login", "/missing"):
            page = client.get(path)
            assert not INLINE.search(page.text), path
            policy = page.headers["content-security-policy"]
            assert "script-src 'self';" in policy
            assert "unsafe" not in policy
            assert page.headers["x-content-type-options"] == "nosniff"


def test_pages_are_in_the_language_of_the_browser_or_the_chosen_one(shared_console: Served) -> None:
    with shared_console.client(headers=CHINESE) as client:
        page = client.get("/")
        assert '<html lang="zh">' in page.text
        assert "待投递定时消息" in page.text
        english = client.post("/language", data={"language": "en", "to": "/console/?span=1d"})
        assert '<html lang="en">' in english.text
        assert english.url.query == b"span=1d"
        elsewhere = client.post("/language", data={"language": "en", "to": "https://example.com/"})
        assert elsewhere.url.host == "127.0.0.1"


def test_a_state_that_is_not_known_is_not_zero(tmp_path: Path) -> None:
    with served(tmp_path, timerWheelEnable="false") as running, running.client() as client:
        text = client.get("/").text
    [pending] = re.findall(r"<dt>Pending timers</dt><dd>(.*?)</dd>", text, re.S)
    assert "unknown" in pending
    assert '<span class="state bad">off</span>' in text
    assert "Not known from:" in text


async def with_levels(broker: Broker) -> None:
    """Send a level message that is due in two hours, and one whose topic is deleted."""
    address = f"127.0.0.1:{broker.port}"
    async with (
        Producer(broker=address, timeout_s=TIMEOUT_S) as producer,
        Admin(broker=address) as admin,
    ):
        await producer.send(Message("kept", b"b", level=2))
        await producer.send(Message("gone", b"b", level=1))
        await admin.delete_topic("gone")
        quarantined = 0
        async with asyncio.timeout(TIMEOUT_S):
            while not quarantined:
                view = await admin.view(broker.address, LEVELS_VIEW)
                quarantined = sum(view["levels"][0]["quarantined"].values())


def test_the_overview_has_level_messages(tmp_path: Path) -> None:
    keys = {"messageDelayLevel": "1s 2h"}
    with served(tmp_path, with_levels, **keys) as running, running.client() as client:
        text = client.get("/?span=6h&capacity=1").text
    assert "Fullest bar: 1 of 300 messages" in text
    assert re.search(r"<dt>Next due \(UTC\)</dt><dd>20\d\d-", text)
    assert re.search(r"<dt>Quarantined since the start</dt><dd>1\s*</dd>", text)


def test_members_and_queues_of_a_group_have_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inventory, "PAGE_SIZE", 2)
    groups = [{"groupName": "readers", "subscriptionDataSet": []}]
    heartbeat = json.dumps({"clientID": "reader-<1>", "consumerDataSet": groups}).encode()

    async def main() -> None:
        async with (
            api(tmp_path) as (broker, http),
            connected(broker.address) as remote,
            Admin(broker=broker.address) as admin,
            PullConsumer(group="readers", client=admin.client) as consumer,
        ):
            await admin.create_topic("orders", TopicSettings(read_queues=3, write_queues=3))
            assert (await remote.call(RequestCode.HEART_BEAT, body=heartbeat)).code == 0
            for queue in await consumer.queues("orders"):
                await consumer.commit(queue, 0)
            page = (await http.get("/console/groups/readers")).text
            assert "reader-&lt;1&gt;" in page
            assert page.count("<td>orders</td>") == 2
            [link] = re.findall(r'rel="next" href="([^"]+)"', page)
            following = (await http.get(html.unescape(link))).text
            assert following.count("<td>orders</td>") == 1
            assert 'rel="next"' not in following

    asyncio.run(main())


def test_topics_groups_and_schedules_are_listed_in_pages(
    shared_console: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    with shared_console.client() as client:
        assert "orders" in client.get("/topics").text
        assert 'href="/console/groups/readers"' in client.get("/groups").text
        lag = client.get("/groups/readers").text
        assert re.search(r"<dt>Not consumed</dt><dd>[1-9]\d*\s*</dd>", lag)
        assert client.get("/groups/missing").status_code == 404
        assert client.get("/schedules").status_code == 200
        assert client.get("/schedules?cursor=x").status_code == 400
        monkeypatch.setattr(inventory, "PAGE_SIZE", 1)
        [link] = re.findall(r'rel="next" href="/console([^"]+)"', client.get("/topics").text)
        assert client.get(link).text != client.get("/topics").text


def test_a_login_has_the_role_that_the_brokers_grant(accounts: Served) -> None:
    roles = {VIEWER: "viewer", OPERATOR: "operator", ROOT: "administrator"}
    for credentials, role in roles.items():
        with accounts.logged_in(credentials) as client:
            assert f"Role: {role}." in client.get("/").text


def test_a_read_only_console_offers_and_accepts_no_actions(tmp_path: Path) -> None:
    with (
        served(tmp_path, with_accounts, consoleReadOnly="true", **ACCOUNT_KEYS) as running,
        running.logged_in(ROOT) as client,
    ):
        text = client.get("/timers").text
        assert "Role: viewer." in text
        assert "/console/bulk" not in text
        form = {"csrf": csrf_of(text), "action": "cancel"}
        for path in ("/bulk", "/decisions", "/new-schedule", "/migration-commands"):
            assert client.post(path, data=form).status_code == 403, path


def test_a_login_is_a_protected_cookie_and_ends(accounts: Served) -> None:
    with accounts.client() as client:
        login = client.get("/?span=1d")
        assert login.url.path == "/console/login"
        form = {"access_key": ROOT.access_key, "secret": ROOT.secret, "to": login.url.params["to"]}
        page = client.post("/login", data=form)
        assert (page.url.path, page.url.query) == ("/console/", b"span=1d")
        cookie = page.history[0].headers["set-cookie"]
        assert {"HttpOnly", "SameSite=strict", "Path=/console"} <= set(cookie.split("; "))
        for csrf in ("", "x" * 43):
            assert client.post("/logout", data={"csrf": csrf}).status_code == 403
        former = dict(client.cookies)
        client.post("/logout", data={"csrf": csrf_of(page.text)})
        client.cookies.update(former)
        assert client.get("/").url.path == "/console/login"


@pytest.mark.usefixtures("lasting_failures")
def test_wrong_secrets_are_refused_and_limited(tmp_path: Path) -> None:
    with served(tmp_path, **ACCOUNT_KEYS) as running, running.client() as client:
        statuses = [
            client.post("/login", data={"access_key": name, "secret": "wrong"}).status_code
            for name in [*["root", "other"] * 5, "root"]
        ]
        assert statuses == [401] * 10 + [429]
        form = {"access_key": ROOT.access_key, "secret": ROOT.secret}
        assert client.post("/login", data=form).status_code == 429


def test_a_deleted_account_is_logged_out(tmp_path: Path) -> None:
    with (
        served(tmp_path, with_accounts, **ACCOUNT_KEYS) as running,
        running.logged_in(VIEWER) as client,
    ):

        async def delete() -> None:
            running.broker.access.accounts.delete_user(VIEWER.access_key)

        running.run(delete())
        assert client.get("/").url.path == "/console/login"


def test_an_account_that_may_not_view_has_no_login(tmp_path: Path) -> None:
    async def prepare(broker: Broker) -> None:
        from tests.support.accounts import prepare_all, user_steps

        steps = user_steps(Credentials("sender", "sender-secret"), {"Topic:*": ["Pub"]})
        await prepare_all(f"127.0.0.1:{broker.port}", ROOT, steps)

    with served(tmp_path, prepare, **ACCOUNT_KEYS) as running, running.client() as client:
        form = {"access_key": "sender", "secret": "sender-secret"}
        response = client.post("/login", data=form)
        assert response.status_code == 403
        assert "duemq_session" not in client.cookies


def test_malformed_forms_are_refused(shared_console: Served) -> None:
    with shared_console.client() as client:
        assert client.post("/login", json={}).status_code == 400
        form = httpx.Headers({"Content-Type": "application/x-www-form-urlencoded"})
        assert client.post("/login", content=b"\xff=%ff", headers=form).status_code == 400
        assert client.post("/login", content=b"a" * (2 << 20), headers=form).status_code == 413
        assert client.get("/?span=1h&at=x").status_code == 400
        assert client.get("/static/..%2fcatalogue.toml").status_code == 404


def test_logins_expire_and_are_limited() -> None:
    now_s = 0.0
    logins = Logins(lambda: now_s)
    name = logins.start(ROOT, LoginRole.ADMIN)
    assert logins.find("other") is None
    now_s = IDLE_S
    assert logins.find(name, touch=False) is not None
    now_s = IDLE_S + 1
    assert logins.find(name) is None
    name = logins.start(ROOT, LoginRole.ADMIN)
    start_s = now_s
    while now_s <= start_s + AGE_MAX_S:
        assert logins.find(name) is not None
        now_s += IDLE_S
    assert logins.find(name) is None
    accounts = [Credentials(f"account-{number}", "secret") for number in range(LOGINS_MAX + 1)]
    first, *_ = [logins.start(account, LoginRole.ADMIN) for account in accounts]
    assert logins.find(first) is None


def test_an_account_ends_only_its_own_logins() -> None:
    logins = Logins(lambda: 0.0)
    admin = logins.start(ROOT, LoginRole.ADMIN)
    first, second, *_ = [logins.start(VIEWER, LoginRole.VIEWER) for _ in range(ACCOUNT_LOGINS_MAX)]
    assert logins.find(first) is not None  # now the most recently used one
    for _ in range(LOGINS_MAX):
        last = logins.start(VIEWER, LoginRole.VIEWER)
    assert logins.find(second) is None
    assert [logins.find(name) is not None for name in (admin, last)] == [True, True]


def test_every_text_is_in_every_language_and_used() -> None:
    placeholder = re.compile(r"\{(\w+)\}")
    for key, texts in catalogue.TEXTS.items():
        assert texts.keys() == catalogue.LANGUAGES.keys(), key
        names = {frozenset(placeholder.findall(text)) for text in texts.values()}
        assert len(names) == 1, key
        assert all(texts.values()), key
    sources = "".join(
        path.read_text("utf-8") for kind in ("*.py", "*.html") for path in sorted(HERE.rglob(kind))
    )
    named = set(re.findall(r"[\"']([a-z_0-9]+\.[a-z_0-9]+)[\"']", sources))
    composed = {f"{prefix}." for prefix in re.findall(r'f?"(\w+)\.(?:"|\{)', sources)}
    unused = {
        key
        for key in catalogue.TEXTS.keys() - named
        if not key.startswith(tuple(composed)) and f'"{key.partition(".")[2]}"' not in sources
    }
    assert not unused


def test_vendored_files_are_those_of_their_packages() -> None:
    folder = HERE / "static"
    vendored = tomllib.loads((folder / "VENDORED.toml").read_text())
    assert {path.name for path in folder.glob("*.min.*")} == vendored.keys()
    for name, entry in vendored.items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == entry["sha256"], name
        assert (folder / entry["licence"]).stat().st_size > 500
        assert re.fullmatch(r"[\w.-]+@\d+\.\d+\.\d+", entry["package"])


def test_htmx_evaluates_no_text() -> None:
    text = (HERE / "templates" / "base.html").read_text()
    [config] = re.findall(r"name=\"htmx-config\" content='(.*?)'", text)
    assert json.loads(config)["allowEval"] is False


def test_the_axis_is_moved_and_zoomed_by_links(shared_console: Served) -> None:
    with shared_console.client() as client:
        year = client.get("/?span=1y").text
        path = year
        spans = ["1y"]
        while match := re.search(r'href="/console(/\?[^"]+)">\+ zoom in<', path):
            link = html.unescape(match.group(1))
            spans.append(httpx.URL(link).params["span"])
            path = client.get(link).text
        assert spans == ["1y", "30d", "1w", "1d", "6h", "1h", "10min", "1min"]
        bars = [html.unescape(link) for link in re.findall(r'<a href="([^"]+)" tabindex', year)]
        assert len(bars) >= 60
        assert {httpx.URL(link).params["span"] for link in bars} == {"1w"}
        week = client.get(bars[-1].removeprefix("/console"))
        assert week.status_code == 200
        earlier = re.search(r'href="/console(/\?[^"]+)">← earlier<', week.text)
        assert earlier is not None
        moved_ms = int(httpx.URL(html.unescape(earlier.group(1))).params["at"])
        assert int(httpx.URL(bars[-1]).params["at"]) - moved_ms < 5 * 86_400_000


def test_pending_timers_are_compared_with_a_capacity(shared_console: Served) -> None:
    with shared_console.client() as client:
        low = client.get("/?span=1h&capacity=1").text
        assert re.search(r"Fullest bar: \d+ of 60 messages", low)
        assert 'class="limit"' not in low  # a bar of one message would be invisible below it
        assert 'class="limit"' not in client.get("/?span=1h").text
        assert "capacity=1" in low
        hour = client.get("/?span=1y&capacity=1").text
        assert "of 345,600 messages" in hour
        assert client.get("/?capacity=x").status_code == 400
