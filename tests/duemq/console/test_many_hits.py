"""A search with 100,000 hits: exact counts, bounded pages, and a result for each message."""

from __future__ import annotations

import re
from collections.abc import Iterator

import httpx
import pytest

from benchmarks.fill import fill_store
from tests.duemq.console.rig import ACCOUNT_KEYS, OPERATOR, Served, served, with_accounts
from tests.duemq.console.test_bulk import listed, started

HITS = 100_000
SIZES = {
    "mappedFileSizeCommitLog": str(1 << 30),
    "mappedFileSizeConsumeQueue": "6000000",
    "maxHashSlotNum": "5000000",
    "maxIndexNum": "20000000",
}
PAGE_BYTES_MAX = 100_000
NEXT = re.compile(r'rel="next" href="/console([^"]+)"')


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Console of a broker with 100,000 pending timers."""
    root = tmp_path_factory.mktemp("many")
    fill_store(root / "store", HITS, "campaign")
    with served(root, with_accounts, **ACCOUNT_KEYS, **SIZES) as running:
        yield running


def page_of(client: httpx.Client, path: str) -> str:
    """Return a page, which is not too long."""
    page = client.get(path)
    assert page.status_code == 200
    assert len(page.content) < PAGE_BYTES_MAX
    return page.text


@pytest.mark.extended
def test_a_long_list_is_shown_and_decided_on(filled: Served) -> None:
    with filled.logged_in(OPERATOR) as client:
        text = page_of(client, "/timers?topic=campaign")
        for _ in range(3):
            assert text.count('href="/console/messages/') == 100
            following = NEXT.search(text)
            assert following is not None
            text = page_of(client, following.group(1).replace("&amp;", "&"))
        page = listed(client, action="cancel", topic="campaign")
        assert f'<td class="number">{HITS:,}' in page.text
        page = started(client, page, HITS)
        assert f"{HITS:,} / {HITS:,}" in page.text
        [row] = re.findall(r'\?verdict=(\w+)">.*?<td class="number">([\d,]+)', page.text, re.S)
        assert row == ("done", f"{HITS:,}")
        path = page.url.path.removeprefix("/console")
        assert page_of(client, path).count('href="/console/messages/') == 100
        last = page_of(client, f"{path}?verdict=done&first={HITS - 100}")
        assert last.count('href="/console/messages/') == 100
        assert NEXT.search(last) is None
        text = page_of(client, "/timers?topic=campaign")
        while following := NEXT.search(text):
            assert 'href="/console/messages/' not in text
            text = page_of(client, following.group(1).replace("&amp;", "&"))
        assert "There are none" in text
