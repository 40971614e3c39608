"""docs/reference/internal-topics.md agrees with duemq.registry.internal_topics."""

from __future__ import annotations

import re
from pathlib import Path

from duemq.registry.internal_topics import INTERNAL_TOPICS, TopicAccess

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "internal-topics.md"
ROW = re.compile(r"^\| `([^`*]+)` \| (yes|no) \| (yes|no) \|", re.MULTILINE)


def test_the_page_lists_the_topics_and_what_clients_may_do() -> None:
    written = {
        name: (TopicAccess.READ if reads == "yes" else TopicAccess.NONE)
        | (TopicAccess.WRITE if writes == "yes" else TopicAccess.NONE)
        for name, reads, writes in ROW.findall(PAGE.read_text())
    }
    assert written == INTERNAL_TOPICS
