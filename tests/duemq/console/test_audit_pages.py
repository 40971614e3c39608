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
from spark_reconciliation.jobs.audit_ledger import AuditRecord
from spark_reconciliation.jobs.child_process import Result
from spark_reconciliation.plugin import ReconciliationPlugin
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


async def prepared(broker: Broker) -> None:
    """Create accounts and an audit."""
    await with_accounts(broker)
    add_audit(broker)


def add_audit(broker: Broker) -> None:
    """Add an audit to the ledger; its findings are in memory."""
    root = broker.store.config.root
    identity = known_store_id(root / "config") or ""
    location = LedgerLocation(url=default_url(root), store_id=identity, store_path=str(root))
    record = AuditRecord(
        audit_id="audit-1",
        started_ms=1_000_000,
        ended_ms=1_060_000,
        made_by="cron",
        stores=(str(root),),
        exit_code=1,
        verdicts={"ok": 5, "lost": 2},
    )
    ledger = Ledger.open(location, now_ms=1_000_000)
    ledger.write([record])
    ledger.close()
    [plugin] = [
        one for one in broker.plugins.plugins.values() if isinstance(one, ReconciliationPlugin)
    ]
    result = Result(exit_code=1, audit_id="audit-1", offenders=[FINDING])
    plugin.recent.add(result)


@pytest.fixture(scope="module")
def accounts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Console of a broker with accounts and an audit."""
    with served(tmp_path_factory.mktemp("audits"), prepared, **ACCOUNT_KEYS) as running:
        yield running


def entries(text: str) -> list[str]:
    """Return the rows of the operators' audit log as text."""
    rows = re.findall(r"<tr><td>(.*?)</tr>", text, re.S)
    return [html.unescape(re.sub(r"<[^>]+>", " ", row)) for row in rows]


def test_an_audit_leads_to_its_verdicts_and_to_the_messages_of_findings(accounts: Served) -> None:
    with accounts.logged_in(VIEWER) as client:
        text = client.get("/audits").text
        for _ in range(50):  # a thread reads the ledger
            if "audit-1" in text:
                break
            text = client.get("/audits").text
        [path] = re.findall(r'href="/console(/audits/audit-1[^"]+)"', text)
        audit = client.get(html.unescape(path)).text
        assert re.search(r'<td>lost</td><td class="number">2</td>', audit)
        assert 'href="/console/messages/ABC"' in audit
        assert HOSTILE not in audit
        broker = html.unescape(path).partition("?")[2]
        assert client.get(f"/audits/absent?{broker}").status_code == 404
        assert client.get("/audits/audit-1?broker=other").status_code == 404


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
