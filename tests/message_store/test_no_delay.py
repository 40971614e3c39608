"""`message_store` knows no delays: no name, text or comment in it mentions them.

Facts of the file formats that every reader and writer of a store needs are exempt and listed.
"""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator

from tests.test_house_rules import TOP

DELAY = re.compile(r"\w*(?:delay|level|timer|schedul)\w*(?:\.json)?", re.I)
WIRE_FACTS = {
    # Properties of a message that a parser reads into columns of `layout.PUT` and `SCANNED`.
    "DELAY",
    "DELAy",
    "DELAY_ILLEGAL",
    "DELAY_NAME",
    "delay_level",
    "level",
    "parse_level",
    "find_tags_and_level",
    "TIMER_DELAY_SEC",
    "TIMER_DELAY_MS",
    "TIMER_DELIVER_MS",
    "TIMER_NONE",
    "TIMER_ILLEGAL",
    "TIMER_DEL_UNIQKEY",
    "TIMER_OUT_MS",
    "TIMER_ROLL_TIMES",
    "TIMER_ENQUEUE_MS",
    "TIMER_DEQUEUE_MS",
    "PROP_TIMER_OUT",
    "PROP_TIMER_DEL",
    "PROP_TIMER_STALE",
    "TIMER_STALE_NAMES",
    "timer_kind",
    "timer_value",
    "_timer",
    "TIMER_",
    "DUEMQ_SCHEDULE",
    "SCHEDULE_PREFIX",
    "_SCHEDULE",
    "PROP_SCHEDULE",
    # The tags code of a redirected record is a time, not the hash of a tag.
    "due_delay_ms",
    "SCHEDULE_TOPIC_XXXX",
    # Names of files in a store, and a key of Apache's configuration.
    "delayOffset.json",
    "timerlog",
    "timerwheel",
    "timercheck",
    "timermetrics",
    "timers.json",
    "diskSpaceWarningLevelRatio",
}
PACKAGES = "message_store/kernels/__init__.py"  # lists the packages with kernels
SOURCES = sorted(
    path for path in (TOP / "message_store").rglob("*.py") if str(path.relative_to(TOP)) != PACKAGES
)


def words_of(source: str) -> Iterator[str]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in (tokenize.NAME, tokenize.STRING, tokenize.COMMENT):
            yield from DELAY.findall(token.string)


def test_message_store_does_not_mention_delays() -> None:
    assert len(SOURCES) > 60
    words = {word: path for path in SOURCES for word in words_of(path.read_text())}
    assert {word: path for word, path in words.items() if word not in WIRE_FACTS} == {}
    assert WIRE_FACTS - words.keys() == set()
