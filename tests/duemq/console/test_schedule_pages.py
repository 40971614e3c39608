"""Schedules of the console: preview, create, pause, resume, trigger, backfill, delete."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import httpx
import pytest

from duemq.broker.broker import Broker
from duemq.client import Message, Producer
from duemq.client.admin.schedules import backfill_count, definition_from
from recurring_schedules.definition import InvalidDefinition
from tests.duemq.console.rig import (
    ACCOUNT_KEYS,
    OPERATOR,
    VIEWER,
    Served,
    csrf_of,
    served,
    with_accounts,
)
from tests.support.accounts import ROOT
from tests.support.running_broker import TIMEOUT_S

NEW = {"topic": "reports", "cron": "0 9 * * MON", "zone": "Europe/Berlin", "body": "weekly"}
FIELD = re.compile(r'<input type="hidden" name="([^"]+)" value="([^"]*)">')


async def with_topic(broker: Broker) -> None:
    """Create accounts and the topic of the schedules."""
    await with_accounts(broker)
    async with Producer(
        broker=f"127.0.0.1:{broker.port}", credentials=ROOT, timeout_s=TIMEOUT_S
    ) as producer:
        await producer.send(Message("reports", b"b"))


@pytest.fixture(scope="module")
def accounts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Console of a broker with accounts and a topic."""
    with served(tmp_path_factory.mktemp("schedules"), with_topic, **ACCOUNT_KEYS) as running:
        yield running


def hidden_fields(text: str, path: str) -> dict[str, str]:
    """Return the hidden fields of the last posting form of a path."""
    forms = re.findall(rf'method="post" action="/console{path}">(.*?)</form>', text, re.S)
    return {name: html.unescape(value) for name, value in FIELD.findall(forms[-1])}


def created(client: httpx.Client, name: str, **more: str) -> httpx.Response:
    """Create a schedule after its preview, and return its page."""
    preview = client.get("/new-schedule", params=NEW | {"name": name} | more)
    fields = hidden_fields(preview.text, "/new-schedule")
    page = client.post("/new-schedule", data=fields)
    assert page.url.path == f"/console/schedules/{name}", page.text
    return page


def changed(client: httpx.Client, name: str, change: str, **more: str) -> httpx.Response:
    """Confirm a change of a schedule, and return the page with its result."""
    query = {"name": name, "change": change} | more
    question = client.get("/schedule-changes", params=query)
    assert question.status_code == 200, question.text
    return client.post("/schedule-changes", data=hidden_fields(question.text, "/schedule-changes"))


def test_the_preview_has_the_next_runs_in_the_zone_and_in_utc(accounts: Served) -> None:
    with accounts.logged_in(OPERATOR) as client:
        page = client.get("/new-schedule", params=NEW | {"name": "preview"}).text
        assert len(re.findall(r"Mon \d{4}-\d\d-\d\d 09:00:00 CES?T", page)) == 5
        assert len(re.findall(r"<td>\d{4}-\d\d-\d\d 0[78]:00:00</td>", page)) == 5
        assert "preview" not in client.get("/schedules").text  # nothing is created yet
        for wrong in ({"cron": "99 * * * *"}, {"zone": "Mars"}, {"every_s": "5"}, {"name": "a b"}):
            text = client.get("/new-schedule", params=NEW | {"name": "preview"} | wrong).text
            assert "The schedule cannot be created." in text, wrong
            assert 'method="post" action="/console/new-schedule"' not in text


def test_a_schedule_is_created_paused_and_resumed(accounts: Served) -> None:
    with accounts.logged_in(ROOT) as client:
        assert "Mon 2" in created(client, "report").text
        assert 'href="/console/schedules/report"' in client.get("/schedules").text
        created(client, "in-utc", zone="")
        row = client.get("/schedules").text.partition("in-utc</a>")[2].partition("</tr>")[0]
        assert "<td>UTC</td>" in row
        paused = changed(client, "report", "pause", note="until <b>Friday</b>")
        assert paused.url.path == "/console/schedules/report"
        assert "until &lt;b&gt;Friday&lt;/b&gt;" in paused.text
        assert ">Resume</button>" in paused.text
        assert ">Pause</button>" in changed(client, "report", "resume").text


def test_past_occurrences_are_counted_and_sent(accounts: Served) -> None:
    until = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    times = {
        "from": (until - timedelta(hours=6)).strftime("%Y-%m-%dT%H:%M"),
        "until": until.strftime("%Y-%m-%dT%H:%M"),
    }
    with accounts.logged_in(ROOT) as client:
        created(client, "hourly", cron="@hourly", zone="UTC")
        query = {"name": "hourly", "change": "backfill"}
        question = client.get("/schedule-changes", params=query | times).text
        assert re.search(r"<td>Messages</td><td>6\s*</td>", question)
        page = client.post("/schedule-changes", data=hidden_fields(question, "/schedule-changes"))
        assert "Messages sent: <span" in page.text
        assert '<span class="words">6</span>' in page.text
        assert '<span class="words">1</span>' in changed(client, "hourly", "trigger").text
        for wrong in ({"until": "2099-01-01T00:00"}, {"from": ""}, {"from": times["until"]}):
            answer = client.get("/schedule-changes", params=query | times | wrong)
            assert answer.status_code == 400, wrong
        endless = query | times | {"from": "1990-01-01T00:00"}
        assert client.get("/schedule-changes", params=endless).status_code == 400


def test_a_schedule_is_deleted_after_the_confirmation(accounts: Served) -> None:
    with accounts.logged_in(ROOT) as client:
        created(client, "doomed")
        question = client.get("/schedule-changes", params={"name": "doomed", "change": "delete"})
        fields = hidden_fields(question.text, "/schedule-changes")
        assert client.post("/schedule-changes", data=fields | {"csrf": "x"}).status_code == 403
        changed(client, "doomed", "pause", note="first")
        late = client.post("/schedule-changes", data=fields)
        assert late.status_code == 409
        assert changed(client, "doomed", "delete").url.path == "/console/schedules"
        assert client.get("/schedules/doomed").status_code == 404


def test_viewers_change_no_schedule(accounts: Served) -> None:
    with accounts.logged_in(ROOT) as client:
        created(client, "seen")
    with accounts.logged_in(VIEWER) as client:
        page = client.get("/schedules/seen")
        assert "/console/schedule-changes" not in page.text
        form = {"csrf": csrf_of(page.text), "name": "seen", "change": "delete", "revision": "1"}
        assert client.post("/schedule-changes", data=form).status_code == 403
        assert client.post("/new-schedule", data=form | NEW).status_code == 403
        assert client.get("/new-schedule").status_code == 403
        assert client.get("/schedules/seen").status_code == 200


def test_the_count_of_a_backfill_has_the_limits_of_the_broker() -> None:
    definition = definition_from({"name": "s", "topic": "T", "every_ms": 1_000})
    assert backfill_count(definition, 1_000, 10_001_000) == 10_000
    with pytest.raises(InvalidDefinition, match="more than 10000"):
        backfill_count(definition, 1_000, 10_002_000)
