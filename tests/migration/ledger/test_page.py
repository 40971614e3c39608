"""The page of one run, parsed again, with any texts that users write into a ledger."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any
from xml.etree import ElementTree

import pytest

from duemq_common.charts import HEIGHT, LEFT, WIDTH
from duemq_migration.ledger.page import history_page, phases, span_of
from duemq_migration.ledger.records import (
    EventRecord,
    LedgerLevel,
    MigrationRecord,
    MigrationRun,
    SampleRecord,
    VerificationRecord,
)
from duemq_migration.ownership.states import State
from duemq_migration.plans.plan import Obstacle, ObstacleKind, Plan, PlannedLevel

START_MS = 1_795_278_600_000
END_MS = START_MS + 60_000
XHTML, SVG = "{http://www.w3.org/1999/xhtml}", "{http://www.w3.org/2000/svg}"
NASTY = "</p><script>alert('x')</script>\" onload=\"y&amp;\x00\x1b"
VOID = {"meta", "br"}


def sample(second: int, **values: float | None) -> SampleRecord:
    return SampleRecord(migration_id="r", at_ms=START_MS + 1_000 * second, **values)


def a_plan(text: str) -> Plan:
    return Plan(
        plan_id="p",
        store_id="s",
        made_ms=START_MS - 5_000,
        made_by=text,
        levels=[PlannedLevel(level=3, delay_ms=90_000, pending=2_000_000, overdue=3)],
        obstacles=[Obstacle(kind=ObstacleKind.UNREADABLE, level=3, count=2, text=text)],
    )


def a_level(level: int, state: State, **values: Any) -> LedgerLevel:
    return LedgerLevel(migration_id="r", level=level, state=state, updated_ms=END_MS, **values)


def a_verification(text: str, **values: int) -> VerificationRecord:
    return VerificationRecord(
        migration_id="r",
        level=5,
        at_ms=END_MS - 5,
        levels_count=7,
        levels_checksum=(1 << 64) - 1,
        timers_checksum=(1 << 64) - 1,
        text=text,
        **values,
    )


def a_run(text: str = "started by hand") -> MigrationRun:
    return MigrationRun(
        migration=MigrationRecord(
            migration_id="r",
            plan_id=f"p {text}",
            started_ms=START_MS,
            started_by=text,
            ended_ms=END_MS,
        ),
        plan=a_plan(text),
        levels=[
            a_level(
                3, State.DRAINING, moved=1_500_000, moved_bytes=78_000_000, paused=True, cause=text
            ),
            a_level(5, State.DONE, moved=7),
        ],
        events=[
            EventRecord(
                key="a", migration_id="r", at_ms=START_MS, kind="state", operator=text, text=text
            ),
            EventRecord(
                key="mark 1", migration_id="r", at_ms=START_MS + 9, kind="handover", level=3
            ),
        ],
        verifications=[a_verification(text, timers_count=count) for count in (7, 6)],
        samples=[
            *(
                sample(n, delivered=10, late_p50_ms=1, late_p99_ms=4, late_max_ms=5)
                for n in (-2, 0)
            ),
            *(sample(n, rate_per_s=n * 1e5, late_p99_ms=n or None) for n in range(1, 20)),
            sample(30, rate_per_s=0.0),
            sample(61, delivered=5, late_p50_ms=2, late_p99_ms=6, late_max_ms=9_000),
        ],
    )


def parsed(run: MigrationRun) -> ElementTree.Element:
    page = history_page(run, store="/stores/one", made_ms=END_MS)
    return ElementTree.fromstring(page.removeprefix("<!DOCTYPE html>"))


def text_of(root: ElementTree.Element) -> str:
    return " ".join(" ".join(root.itertext()).split())


def section(root: ElementTree.Element, title: str) -> ElementTree.Element:
    for head, card in root.iterfind(f".//{XHTML}section"):
        if head.text == title:
            return card
    raise AssertionError(f"no section {title}")


class Strict(HTMLParser):
    """A parser that fails if tags are not closed in order, which browsers would repair silently."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.attributes: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_every_figure_is_on_the_page() -> None:
    root = parsed(a_run())
    text = text_of(root)
    for figure in (
        "1,500,007 messages transferred",
        "74.4 MiB of timer units",
        "1 min from start to end",
        "1.9 M/s fastest",
        "19 ms highest p99 lateness during the run",
        "Started 2026-11-21 16:30:00 UTC by started by hand; ended 2026-11-21 16:31:00 UTC",
        "1,500,000 of 2,000,000 planned",
        "draining paused started by hand",
        "ffffffffffffffff",
        "level 3: started by hand (2)",
    ):
        assert figure in text, figure


def test_lateness_before_during_and_after() -> None:
    rows = section(parsed(a_run()), "Lateness of deliveries").findall(f".//{XHTML}tbody/{XHTML}tr")
    assert [text_of(row) for row in rows] == [
        "before 20 1 ms 4 ms 4 ms 5 ms",
        "during 0 – 10 ms 19 ms –",
        "after 5 2 ms 6 ms 6 ms 9,000 ms",
    ]


def test_a_current_run_has_no_end() -> None:
    run = a_run()
    under_way = MigrationRun(
        migration=MigrationRecord(migration_id="r", started_ms=START_MS),
        levels=run.levels,
        samples=run.samples,
    )
    assert span_of(under_way) == (START_MS, END_MS)
    assert phases(under_way)["after"] == []
    assert "ended –" in text_of(parsed(under_way))


def test_an_empty_run() -> None:
    text = text_of(
        parsed(MigrationRun(migration=MigrationRecord(migration_id="r", started_ms=START_MS)))
    )
    assert "Rate: nothing was measured." in text
    assert "Nothing was verified." in text


def test_steps_are_merged() -> None:
    events = section(parsed(a_run()), "Events")
    assert "handover" not in text_of(events).partition("Every step (2)")[0]
    assert "handover" in text_of(events).partition("Every step (2)")[2]


def test_verifications_show_whether_they_agree() -> None:
    rows = section(parsed(a_run()), "Verifications").findall(f".//{XHTML}tbody/{XHTML}tr")
    assert ["agrees" in text_of(row) for row in rows] == [True, False]
    assert "differs" in text_of(rows[1])


@pytest.mark.parametrize("title", ["Rate", "Lateness of deliveries"])
def test_charts_stay_inside_their_frame(title: str) -> None:
    svg = section(parsed(a_run()), title).find(f"{SVG}svg")
    assert svg is not None
    paths = [path.get("d", "") for path in svg.iter(f"{SVG}path")]
    assert paths
    for path in paths:
        numbers = [float(number) for number in re.findall(r"-?\d+\.?\d*", path)]
        assert all(LEFT <= x <= WIDTH for x in numbers[::2])
        assert all(0 <= y <= HEIGHT for y in numbers[1::2])
    hits = [rect for rect in svg.iter(f"{SVG}rect") if rect.get("class") == "hit"]
    assert len(hits) == len(a_run().samples)
    assert all(float(rect.get("width", "-1")) >= 0 for rect in hits)


def test_the_rate_is_shown_at_the_pointer() -> None:
    svg = section(parsed(a_run()), "Rate").find(f"{SVG}svg")
    assert svg is not None
    titles = [title.text for title in svg.iter(f"{SVG}title")]
    assert "2026-11-21 16:30:10\nmessages a second: 1 M/s" in titles


@pytest.mark.parametrize("text", [NASTY, "x" * 2_000, "ü\u2028\U0001f600", "\ud83d", "]]>"])
def test_user_texts_are_escaped(text: str) -> None:
    run = a_run(text)
    page = history_page(run, store=text, made_ms=END_MS)
    reader = Strict()
    reader.feed(page)
    reader.close()
    assert reader.open == []
    assert "script" not in reader.seen
    assert not {name for name in reader.attributes if name.startswith("on")}
    page.encode()
    seen = text_of(parsed(run))
    assert re.sub("[\x00\x1b\ud83d]", "\ufffd", " ".join(text.split())) in seen


def test_the_page_needs_no_other_resources() -> None:
    page = history_page(a_run(), store="/", made_ms=END_MS)
    addresses = re.findall(r"[a-z]+://[^\s\"'<]+", page)
    assert set(addresses) == {"http://www.w3.org/1999/xhtml", "http://www.w3.org/2000/svg"}
    reader = Strict()
    reader.feed(page)
    assert not reader.seen & {"script", "link", "img", "iframe", "object"}
    assert not reader.attributes & {"src", "href", "srcset"}
    assert "url(" not in page
    assert "@import" not in page


def test_every_colour_has_a_dark_variant() -> None:
    light, dark = (
        set(re.findall(r"(--[\w-]+):", part))
        for part in history_page(a_run(), store="/", made_ms=1).split("prefers-color-scheme: dark")
    )
    assert light
    assert light == dark
