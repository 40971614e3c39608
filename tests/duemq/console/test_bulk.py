"""Bulk decisions: listed, confirmed, stopped, and with a true result for each message."""

from __future__ import annotations

import asyncio
import html
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from duemq.broker.broker import Broker
from duemq.client import Message, Producer
from duemq.client.decisions import MessageSelection
from duemq.client.errors import Unreachable
from duemq.console import bulk
from duemq.console.bulk import BulkJobs
from duemq.console.bulk_job import BulkJob, TimerSearch
from duemq.http.problems import Problem
from duemq.net.decisions import TIME_MS_MAX, DecisionResult
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

MESSAGES = 25
LATER = (datetime.now(UTC) + timedelta(days=2)).strftime("%Y-%m-%dT%H:%M:%S")
POLLS_MAX = 2_000
EVERY = TimerSearch("", "", 0, TIME_MS_MAX)


async def prepared(broker: Broker) -> None:
    """Create accounts, and a campaign for each action."""
    await with_accounts(broker)
    async with Producer(broker=f"127.0.0.1:{broker.port}", credentials=ROOT) as producer:
        for topic in ("cancel", "move", "fire", "both", "refused"):
            for number in range(MESSAGES):
                delay = timedelta(hours=1, seconds=number)
                await producer.send(Message(topic, b"b", keys=[f"k{number}"], delay=delay))


@pytest.fixture(scope="module")
def accounts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Console of a broker with accounts and pending messages."""
    with served(tmp_path_factory.mktemp("bulk"), prepared, **ACCOUNT_KEYS) as running:
        yield running


def listed(client: httpx.Client, **search: str) -> httpx.Response:
    """Prepare a bulk decision and return its page when all messages are listed."""
    csrf = csrf_of(client.get("/").text)
    page = client.post("/bulk", data={"csrf": csrf, **search})
    assert re.search(r"/bulk/[\w-]+$", page.url.path), page.text
    return ended(client, page)


def ended(client: httpx.Client, page: httpx.Response) -> httpx.Response:
    """Return the page of a job that no longer changes."""
    for _ in range(POLLS_MAX):
        if "sse-connect" not in page.text:
            return page
        page = client.get(page.url.path.removeprefix("/console"))
    raise AssertionError(page.text)


def started(client: httpx.Client, page: httpx.Response, count: int) -> httpx.Response:
    """Confirm a bulk decision, and return the page with its results."""
    form = {"csrf": csrf_of(page.text), "do": "start", "count": str(count)}
    path = page.url.path.removeprefix("/console")
    return ended(client, client.post(path, data=form))


def results_of(text: str) -> dict[str, int]:
    """Return the number of messages by result on the page of a job."""
    rows = re.findall(r'\?verdict=(\w+)">.*?<td class="number">(\d+)', text, re.S)
    return {verdict: int(count) for verdict, count in rows}


def pending(client: httpx.Client, topic: str) -> list[str]:
    """Return the due times of the pending messages of a topic."""
    text = client.get("/timers", params={"topic": topic}).text
    return re.findall(r"<tr><td>([\d :.-]+)</td>", text)


@pytest.mark.parametrize("action", ["cancel", "move", "fire"])
def test_all_hits_are_decided_after_the_confirmation(accounts: Served, action: str) -> None:
    with accounts.logged_in(OPERATOR) as client:
        assert 'action="/console/bulk"' in client.get("/timers", params={"topic": action}).text
        page = listed(client, action=action, topic=action, to=LATER)
        assert f'<td class="number">{MESSAGES}' in page.text
        path = page.url.path.removeprefix("/console")
        form = {"csrf": csrf_of(page.text), "do": "start"}
        assert client.post(path, data=form | {"count": "24"}).status_code == 400
        assert client.post(path, data=form | {"count": "25", "csrf": "x"}).status_code == 403
        assert len(pending(client, action)) == MESSAGES  # nothing is decided yet
        page = started(client, page, MESSAGES)
        assert results_of(page.text) == {"done": MESSAGES}
        due_times = pending(client, action)
        assert due_times == ([LATER.replace("T", " ")] * MESSAGES if action == "move" else [])
        assert html.escape(page.url.path) in client.get("/bulk").text
        again = client.post(path, data=form | {"count": "25"})
        assert again.status_code == 409


def test_two_operators_get_true_results(accounts: Served) -> None:
    with accounts.logged_in(OPERATOR) as first, accounts.logged_in(ROOT) as second:
        own = listed(first, action="cancel", topic="both")
        other = listed(second, action="cancel", topic="both", key="k7")
        foreign = {"csrf": csrf_of(other.text), "do": "start", "count": str(MESSAGES)}
        path = own.url.path.removeprefix("/console")
        assert second.post(path, data=foreign).status_code == 403
        assert results_of(started(second, other, 1).text) == {"done": 1}
        page = started(first, own, MESSAGES)
        assert results_of(page.text) == {"done": MESSAGES - 1, "before": 1}
        others = first.get(path, params={"verdict": "before"}).text
        assert others.count('href="/console/messages/') == 1


def test_a_move_into_the_past_is_announced(accounts: Served) -> None:
    with accounts.logged_in(OPERATOR) as client:
        search = {"action": "move", "topic": "refused"}
        assert "delivered at once" in listed(client, **search, to="2020-01-01T00:00").text
        assert "delivered at once" not in listed(client, **search, to=LATER).text
        form = {"csrf": csrf_of(client.get("/").text), **search}
        assert client.post("/bulk", data=form | {"to": "0001-01-01T00:00"}).status_code == 400


def test_viewers_and_forged_forms_prepare_nothing(accounts: Served) -> None:
    with accounts.logged_in(VIEWER) as client:
        page = client.get("/timers", params={"topic": "refused"}).text
        assert 'action="/console/bulk"' not in page
        form = {"action": "cancel", "topic": "refused", "csrf": csrf_of(page)}
        assert client.post("/bulk", data=form).status_code == 403
        assert client.get("/bulk").status_code == 403
    with accounts.logged_in(OPERATOR) as client:
        form = {"csrf": csrf_of(client.get("/").text), "topic": "refused"}
        assert client.post("/bulk", data=form | {"csrf": "x", "action": "fire"}).status_code == 403
        for more in ({}, {"action": "delete"}, {"action": "move"}, {"action": "move", "to": "x"}):
            assert client.post("/bulk", data=form | more).status_code == 400, more
        assert client.get("/bulk/missing").status_code == 404
        with client.stream("GET", "/events/bulk/missing") as stream:
            events = "".join(stream.iter_lines())
        assert "There is no such bulk decision" in events
        assert events.endswith("event: enddata: end")
        assert len(pending(client, "refused")) == MESSAGES


class FakeBroker:
    """Session, admin and decisions of one broker in memory.

    Attributes:
        requested: Set at the first decision.
        gate: Holds each decision until it is set.
        failing: Number of the request that fails; 0: none.
        with_key: Number of pending messages with any key.
    """

    def __init__(self, count: int) -> None:
        self.timers = [
            {"topic": "T", "unique_key": f"id{n}", "due_ms": 1_000 + n} for n in range(count)
        ]
        self.gate = asyncio.Event()
        self.gate.set()
        self.requested = asyncio.Event()
        self.requests: list[MessageSelection] = []
        self.failing, self.with_key = 0, count
        self.admin = self.decisions = self

    def __enter__(self) -> None: ...

    def __exit__(self, *exc: object) -> None: ...

    async def masters(self) -> list[tuple[str, str]]:
        return [("b", "address")]

    async def view(self, address: str, name: str, **fields: Any) -> Mapping[str, Any]:
        first = int(fields["cursor"] or 0)
        end = first + fields["limit"]
        cursor = str(end) if end < len(self.timers) else None
        return {"timers": self.timers[first:end], "cursor": cursor, "damage": []}

    async def decide(
        self, action: str, selection: MessageSelection, **more: object
    ) -> list[DecisionResult]:
        if selection.keys:
            return [DecisionResult(selection.keys[0], "done", self.with_key)]
        self.requests.append(selection)
        self.requested.set()
        await self.gate.wait()
        if len(self.requests) == self.failing:
            raise Unreachable("address", "gone")
        return [DecisionResult(name, "done", 1) for name in selection.ids]


def jobs_at(times: list[float]) -> BulkJobs:
    """Return jobs whose clock is the last of the times."""
    return BulkJobs(lambda: int(times[-1] * 1_000), lambda: times[-1])


async def ready(jobs: BulkJobs, broker: Any, account: str = "a") -> BulkJob:
    """Return a job with all messages of a broker."""
    job = jobs.prepare(broker, account, "cancel", EVERY, None)
    assert job.task is not None
    await job.task
    return job


def test_a_stop_ends_after_the_batch_in_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        monkeypatch.setattr(bulk, "BATCH", 3)
        jobs, broker = jobs_at([0.0]), FakeBroker(10)
        job = await ready(jobs, broker)
        broker.gate.clear()
        jobs.start(broker, job, "a")
        await broker.requested.wait()
        jobs.stop(job, "b")
        broker.gate.set()
        assert job.task is not None
        await job.task
        assert (job.state, job.stopped_by, job.decided) == ("stopped", "b", 3)
        assert job.counts == {"open": 7, "done": 3}
        assert [one.name for _, one in job.items("open")] == [f"id{n}" for n in range(3, 10)]
        assert [one.name for _, one in job.items("", 8)] == ["id8", "id9"]

    asyncio.run(main())


def test_a_request_without_response_leaves_results_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        monkeypatch.setattr(bulk, "BATCH", 3)
        jobs, broker = jobs_at([0.0]), FakeBroker(10)
        broker.failing = 2
        job = await ready(jobs, broker)
        jobs.start(broker, job, "a")
        assert job.task is not None
        await job.task
        assert job.state == "failed"
        assert "gone" in job.failure
        assert job.counts == {"open": 4, "done": 3, "no_response": 3}
        assert [(one.from_ms, one.until_ms) for one in broker.requests] == [
            (1_000, 1_003),
            (1_003, 1_006),
        ]

    asyncio.run(main())


def test_hits_without_an_id_are_counted_apart() -> None:
    async def main() -> None:
        broker = FakeBroker(3)
        broker.timers[1] = {"topic": None, "due_ms": 5, "unreadable": "damaged"}
        job = await ready(jobs_at([0.0]), broker)
        assert (job.total, job.nameless) == (2, 1)

    asyncio.run(main())


def test_a_key_with_more_messages_than_are_listed_is_refused() -> None:
    async def main() -> None:
        jobs, broker = jobs_at([0.0]), FakeBroker(10)
        search = TimerSearch("", "k", 0, TIME_MS_MAX)
        states = []
        for broker.with_key in (10, 11):
            job = jobs.prepare(broker, "a", "cancel", search, None)
            assert job.task is not None
            await job.task
            states.append((job.state, "11 pending messages with the key" in job.failure))
        assert states == [("ready", False), ("failed", True)]

    asyncio.run(main())


def test_jobs_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        times = [0.0]
        jobs, broker = jobs_at(times), FakeBroker(10)
        monkeypatch.setattr(bulk, "ITEMS_MAX", 9)
        assert "more than 9 hits" in (await ready(jobs, broker)).failure
        monkeypatch.undo()
        pending = [jobs.prepare(broker, "a", "cancel", EVERY, None) for _ in range(2)]
        with pytest.raises(Problem, match="in progress"):
            jobs.prepare(broker, "a", "cancel", EVERY, None)
        await asyncio.gather(*(one.task for one in pending if one.task))
        monkeypatch.setattr(bulk, "ITEMS_TOTAL_MAX", 10)
        assert jobs.jobs() == [pending[1]]
        times.append(bulk.READY_S + 1)
        assert jobs.jobs() == []
        with pytest.raises(Problem):
            jobs.find(pending[1].id)

    asyncio.run(main())


def test_an_item_takes_a_few_dozen_bytes() -> None:
    job = BulkJob(
        id="x",
        account="a",
        action="cancel",
        search=EVERY,
        deliver_ms=None,
        prepared_ms=0,
        prepared_s=0,
    )
    for number in range(10_000):
        job.add("T", f"{number:032X}", number)
    [items] = job.lists.values()
    columns = (items.names, items.ends, items.due_ms, items.verdicts, items.remark_indexes)
    sizes = [len(one) * getattr(one, "itemsize", 1) for one in columns]
    assert sum(sizes) <= 50 * len(items)
    assert items.name(7) == f"{7:032X}"
