"""Bulk decisions: listed, confirmed, stopped, and with a true result for each message."""

from __future__ import annotations

import asyncio
import html
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import msgspec
import pytest

from duemq.broker.broker import Broker
from duemq.client import Message, Producer
from duemq.client.admin.cluster import BrokerMember
from duemq.client.bulk_decisions import HitPage, PendingSearch
from duemq.client.errors import Unreachable
from duemq.console import bulk
from duemq.console.bulk import BulkJobs
from duemq.console.bulk_job import BulkJob
from duemq.http.broker_states import NOT_REGISTERED
from duemq.http.problems import Problem
from duemq.net.decisions import HitDecision, HitVerdicts, PendingHits
from duemq_common.codes import RequestCode
from duemq_common.request import Response
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
from tests.support.wait_until import until

MESSAGES = 25
LATER = (datetime.now(UTC) + timedelta(days=2)).strftime("%Y-%m-%dT%H:%M:%S")
JOB_S_MAX = 180.0  # for 100,000 messages


async def prepared(broker: Broker) -> None:
    """Create accounts, and a campaign for each action."""
    await with_accounts(broker)
    async with Producer(
        broker=f"127.0.0.1:{broker.port}", credentials=ROOT, timeout_s=TIMEOUT_S
    ) as producer:
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
    path = page.url.path.removeprefix("/console")

    def final() -> httpx.Response | None:
        current = client.get(path)
        return None if "sse-connect" in current.text else current

    if "sse-connect" not in page.text:
        return page
    return until(final, seconds=JOB_S_MAX, what="end of the job")


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


@pytest.mark.sampled
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
    """Session and client of one broker in memory, which returns pages of three hits.

    Attributes:
        requested: Set at the first decision.
        gate: Holds each decision until it is set.
        failing: Number of the decision that fails; 0: none.
        nameless: Number of hits without an id on each page.
        absent: Brokers that are no longer registered.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.gate = asyncio.Event()
        self.gate.set()
        self.requested = asyncio.Event()
        self.decisions: list[HitDecision] = []
        self.failing = self.nameless = 0
        self.absent: list[BrokerMember] = []
        self.client, self.broker = self, "address"

    def __enter__(self) -> None: ...

    def __exit__(self, *exc: object) -> None: ...

    async def masters(self) -> list[tuple[str, str]]:
        return [("b", "address")]

    async def absent_masters(self) -> list[BrokerMember]:
        return self.absent

    async def call(
        self, address: str, code: int, fields: Mapping[str, Any], body: bytes = b"", **more: object
    ) -> Response:
        if code == RequestCode.SEARCH_PENDING:
            return Response(body=msgspec.msgpack.encode(self.page(int(fields["cursor"] or 0))))
        self.decisions.append(msgspec.msgpack.decode(body, type=HitDecision))
        self.requested.set()
        await self.gate.wait()
        if len(self.decisions) == self.failing:
            raise Unreachable("address", "gone")
        count = len(self.decisions[-1].keys)
        verdicts = HitVerdicts(verdicts=bytes(count), remarks={0: "a remark"})
        return Response(body=msgspec.msgpack.encode(verdicts))

    def page(self, first: int) -> PendingHits:
        numbers = range(first, min(first + 3, self.count))
        return PendingHits(
            topics=["T", "U"],
            topic_indexes=[number % 2 for number in numbers],
            keys=[b"id%d" % number for number in numbers],
            offsets=list(numbers),
            due_ms=[1_000 + number for number in numbers],
            cursor=str(numbers.stop) if numbers.stop < self.count else None,
            nameless=self.nameless,
        )


def jobs_at(times: list[float]) -> BulkJobs:
    """Return jobs whose clock is the last of the times."""
    return BulkJobs(lambda: int(times[-1] * 1_000), lambda: times[-1])


async def ready(jobs: BulkJobs, broker: Any, account: str = "a") -> BulkJob:
    """Return a job with all messages of a broker."""
    job = jobs.prepare(broker, account, "cancel", PendingSearch(), None)
    assert job.task is not None
    await job.task
    return job


def test_a_stop_ends_after_the_request_in_progress() -> None:
    async def main() -> None:
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
        assert [(one.topic, one.name) for _, one in job.items("", 8)] == [
            ("T", "id8"),
            ("U", "id9"),
        ]
        assert [one.remark for _, one in job.items("done")] == ["a remark", "", ""]
        assert [
            (name, one.count, one.first_ms, one.last_ms) for name, one in job.topics.items()
        ] == [
            ("T", 5, 1_000, 1_008),
            ("U", 5, 1_001, 1_009),
        ]

    asyncio.run(main())


def test_a_request_without_response_leaves_results_unknown() -> None:
    async def main() -> None:
        jobs, broker = jobs_at([0.0]), FakeBroker(10)
        broker.failing = 2
        job = await ready(jobs, broker)
        jobs.start(broker, job, "a")
        assert job.task is not None
        await job.task
        assert job.state == "failed"
        assert "gone" in job.failure
        assert job.counts == {"open": 4, "done": 3, "no_response": 3}
        assert [one.offsets for one in broker.decisions] == [[0, 1, 2], [3, 4, 5]]

    asyncio.run(main())


class TwoBrokers(FakeBroker):
    """Session and client of two brokers.

    Attributes:
        away: Addresses that do not respond to searches.
        failing_address: Address whose second decision fails.
    """

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.broker, self.away, self.failing_address = "", set[str](), ""
        self.decided: Counter[str] = Counter()

    async def masters(self) -> list[tuple[str, str]]:
        return [("a", "1"), ("b", "2")]

    async def call(
        self, address: str, code: int, fields: Mapping[str, Any], body: bytes = b"", **more: object
    ) -> Response:
        if code == RequestCode.SEARCH_PENDING and address in self.away:
            raise Unreachable(f"{address} does not respond")
        if code == RequestCode.DECIDE_HITS:
            self.decided[address] += 1
            if (address, self.decided[address]) == (self.failing_address, 2):
                raise Unreachable(f"{address} does not respond")
        return await super().call(address, code, fields, body, **more)


def test_other_brokers_are_decided_on_after_a_failure() -> None:
    async def main() -> None:
        jobs, brokers = jobs_at([0.0]), TwoBrokers(10)
        brokers.failing_address = "1"
        job = await ready(jobs, brokers)
        assert (job.total, job.unknown) == (20, {})
        jobs.start(brokers, job, "a")
        assert job.task is not None
        await job.task
        assert (job.state, job.failure) == ("failed", "1 does not respond")
        assert job.counts == {"done": 3 + 10, "no_response": 3, "open": 4}
        assert brokers.decided == {"1": 2, "2": 4}

    asyncio.run(main())


def test_brokers_that_cannot_be_searched_are_named() -> None:
    async def main() -> None:
        jobs, brokers = jobs_at([0.0]), TwoBrokers(10)
        brokers.away = {"1"}
        brokers.absent = [BrokerMember("c", "old", 0, "3")]
        job = await ready(jobs, brokers)
        assert (job.state, job.total) == ("ready", 10)
        assert job.unknown == {"a": "1 does not respond", "old": NOT_REGISTERED}
        brokers.away = {"1", "2"}
        job = await ready(jobs, brokers)
        assert job.state == "failed"
        assert "2 does not respond" in job.failure

    asyncio.run(main())


def test_hits_without_an_id_are_counted_apart() -> None:
    async def main() -> None:
        broker = FakeBroker(6)
        broker.nameless = 1
        job = await ready(jobs_at([0.0]), broker)
        assert (job.total, job.nameless) == (6, 2)

    asyncio.run(main())


def test_jobs_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        times = [0.0]
        jobs, broker = jobs_at(times), FakeBroker(10)
        monkeypatch.setattr(bulk, "ITEMS_MAX", 9)
        assert "more than 9 hits" in (await ready(jobs, broker)).failure
        monkeypatch.undo()
        pending = [jobs.prepare(broker, "a", "cancel", PendingSearch(), None) for _ in range(2)]
        with pytest.raises(Problem, match="in progress"):
            jobs.prepare(broker, "a", "cancel", PendingSearch(), None)
        await asyncio.gather(*(one.task for one in pending if one.task))
        monkeypatch.setattr(bulk, "ITEMS_TOTAL_MAX", 10)
        assert jobs.jobs() == [pending[1]]
        times.append(bulk.READY_S + 1)
        assert jobs.jobs() == []
        with pytest.raises(Problem):
            jobs.find(pending[1].id)

    asyncio.run(main())


def test_an_item_takes_a_few_dozen_bytes() -> None:
    hits = PendingHits(
        topics=["T"],
        topic_indexes=[0] * 2_000,
        keys=[b"%032X" % number for number in range(2_000)],
        offsets=[(1 << 40) + number for number in range(2_000)],
        due_ms=[1_795_000_000_000 + number for number in range(2_000)],
        cursor=None,
    )
    body = msgspec.msgpack.encode(hits)
    job = BulkJob(
        id="x",
        account="a",
        action="cancel",
        search=PendingSearch(),
        deliver_ms=None,
        prepared_ms=0,
        prepared_s=0,
    )
    job.add(HitPage("b", body, 2_000), hits)
    assert len(body) + len(job.pages[0].verdicts) <= 60 * job.total
    assert [one.name for _, one in job.items("open", 1_999)] == [f"{1_999:032X}"]
