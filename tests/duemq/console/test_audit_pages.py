"""Audits and the operators' audit log in the console; roles without refused requests."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator

import pytest

from duemq.auth.signature import Credentials
from duemq.broker.broker import Broker
from duemq.client import Admin, Refused
from duemq_common.ledger.engine import default_url
from duemq_common.ledger.identity import known_store_id
from duemq_common.ledger.ledger import Ledger
from duemq_common.ledger.location import LedgerLocation
from spark_reconciliation.jobs import stored_audits
from spark_reconciliation.jobs.audit_ledger import AuditRecord
from tests.duemq.console.conftest import HOSTILE
from tests.duemq.console.rig import (
    ACCOUNT_KEYS,
    OPERATOR,
    VIEWER,
    Served,
    served,
    with_accounts,
)
from tests.support.accounts import ROOT

FINDING = {
    "verdict": "lost",
    "why": HOSTILE,
    "topic": "orders",
    "unique_id": "ABC",
    "due_ms": 1_000,
    "root": 7,
    "alike": 2,
}


AUDITS = 3
FINDINGS = 3


async def prepared(broker: Broker) -> None:
    """Create accounts and audits."""
    await with_accounts(broker)
    add_audits(broker)


def add_audits(broker: Broker, reason: str = HOSTILE) -> None:
    """Add audits to the ledger, as the process of an audit does."""
    root = broker.store.config.root
    identity = known_store_id(root / "config") or ""
    location = LedgerLocation(url=default_url(root), store_id=identity, store_path=str(root))
    records = [
        AuditRecord(
            audit_id=f"audit-{number}",
            started_ms=1_000_000 * number,
            ended_ms=1_000_000 * number + 60_000,
            made_by="cron",
            stores=(str(root),),
            exit_code=1,
            verdicts={"ok": 5, "lost": 2},
            findings=[
                FINDING | {"why": reason, "root": 7 + position} for position in range(FINDINGS)
            ],
        )
        for number in range(1, AUDITS + 1)
    ]
    ledger = Ledger.open(location, now_ms=1_000_000)
    ledger.write(records)
    ledger.close()


@pytest.fixture(scope="module")
def accounts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Console of a broker with accounts and an audit."""
    with served(tmp_path_factory.mktemp("audits"), prepared, **ACCOUNT_KEYS) as running:
        yield running


def entries(text: str) -> list[str]:
    """Return the rows of the operators' audit log as text."""
    rows = re.findall(r"<tr><td>(.*?)</tr>", text, re.S)
    return [html.unescape(re.sub(r"<[^>]+>", " ", row)) for row in rows]


def names_in(text: str, pattern: str) -> list[str]:
    return [html.unescape(name) for name in re.findall(pattern, text)]


def test_an_audit_leads_to_its_verdicts_and_to_the_messages_of_findings(accounts: Served) -> None:
    with accounts.logged_in(VIEWER) as client:
        text = client.get("/audits").text
        [path] = names_in(text, r'href="/console(/audits/audit-1[^"]+)"')
        audit = client.get(path).text
        assert re.search(r'<td>lost</td><td class="number">2</td>', audit)
        assert audit.count('href="/console/messages/ABC"') == FINDINGS
        assert HOSTILE not in audit
        broker = path.partition("?")[2]
        assert client.get(f"/audits/absent?{broker}").status_code == 404
        assert client.get("/audits/audit-1?broker=other").status_code == 404


def test_audits_and_findings_have_pages(accounts: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_audits, "RUNS_MAX", 2)
    monkeypatch.setattr(stored_audits, "FINDINGS_MAX", 2)
    link = r'rel="next" href="/console([^"]+)"'
    with accounts.logged_in(VIEWER) as client:
        first = client.get("/audits").text
        second = client.get(names_in(first, link)[0]).text
        pages = [names_in(text, r">(audit-\d)<") for text in (first, second)]
        assert pages == [["audit-3", "audit-2"], ["audit-1"]]
        assert names_in(second, link) == []
        [path] = names_in(second, r'href="/console(/audits/audit-1[^"]+)"')
        first = client.get(path).text
        second = client.get(names_in(first, link)[0]).text
        counts = [text.count('href="/console/messages/ABC"') for text in (first, second)]
        assert counts == [2, 1]
        assert names_in(second, link) == []
    api = accounts.client(auth=(ROOT.access_key, ROOT.secret))
    with api as client:
        runs = client.get(f"{accounts.url}/api/v1/audit-runs").json()
        assert [one["audit_id"] for one in runs["audits"]] == ["audit-3", "audit-2"]
        rest = client.get(f"{accounts.url}/api/v1/audit-runs?cursor={runs['cursor']}").json()
        assert ([one["audit_id"] for one in rest["audits"]], rest["cursor"]) == (["audit-1"], None)
        shown = client.get(f"{accounts.url}/api/v1/audit-runs/audit-1").json()
        assert [one["root"] for one in shown["findings"]] == [7, 8]
        assert client.get(f"{accounts.url}/api/v1/audit-runs/none").status_code == 404
        assert client.get(f"{accounts.url}/api/v1/audit-runs?cursor=x").status_code == 400


def test_a_login_makes_no_refused_requests_and_changes_are_listed_with_their_result(
    accounts: Served,
) -> None:
    async def read_log() -> None:
        async with Admin(broker=accounts.broker.address, credentials=OPERATOR) as admin:
            with pytest.raises(Refused, match="Update on the cluster"):
                await admin.view(accounts.broker.address, "accounts.audit")

    accounts.run(read_log())
    refused = accounts.broker.access.audit.refused_count
    for credentials in (VIEWER, OPERATOR):
        with accounts.logged_in(credentials) as client:
            assert client.get("/operators").status_code == 403
    with accounts.logged_in(ROOT) as client:
        client.get("/")
        assert accounts.broker.access.audit.refused_count == refused
        created = entries(client.get("/operators").text)
        assert any(
            "auth create user" in row and "viewer" in row and "done" in row for row in created
        )


def test_accounts_in_the_operators_log_are_shown_as_text(accounts: Served) -> None:
    async def request() -> None:
        credentials = Credentials(HOSTILE, "secret")
        async with Admin(broker=accounts.broker.address, credentials=credentials) as admin:
            with pytest.raises(Refused):
                await admin.create_topic("T")

    accounts.run(request())
    with accounts.logged_in(ROOT) as client:
        text = client.get("/operators").text
        assert "onerror=alert(1)" in text
        assert HOSTILE not in text


def test_the_operators_log_has_bounded_pages(
    accounts: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duemq.console.pages.operators.PAGE_SIZE", 1)
    with accounts.logged_in(ROOT) as client:
        first = client.get("/operators").text
        [link] = re.findall(r'rel="next" href="/console([^"]+)"', first)
        second = client.get(html.unescape(link)).text
        assert len(entries(first)) == len(entries(second)) == 1
        assert entries(first) != entries(second)


def test_the_operators_log_is_for_administrators(shared_console: Served) -> None:
    with shared_console.client() as client:
        assert client.get("/operators").status_code == 403
