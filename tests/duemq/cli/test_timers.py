"""`duemq timers` as a user runs it: processes on a real broker."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from typing import Any

import pytest
from rich.console import Console

from duemq.cli import timers_forecast
from duemq.cli.exits import Exit
from duemq.cli.messages import table_time
from duemq.cli.timers_forecast import BAR_COLUMNS, bar
from duemq.cli.timers_show import sparks
from duemq.cli.times import parse_time
from duemq_common.errors import UsageError
from tests.support.commands import Running, duemq, start

COUNT = 5


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    running = start(tmp_path_factory.mktemp("broker"), timerRollWindowSlot="3600")
    for topic, at, key in (("Soon", "+50m", "early"), ("Far", "+2d", "late")):
        sent = duemq(
            "send",
            topic,
            "body",
            "--at",
            at,
            "--key",
            key,
            "--count",
            str(COUNT),
            "--json",
            *running.where,
        )
        assert sent.returncode == 0, sent.stderr
        assert json.loads(sent.stdout.splitlines()[0])["recall_handle"]
    yield running
    running.stop()


def reported(broker: Running, *words: str) -> Any:
    done = duemq("timers", *words, "--json", *broker.where)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_summary(broker: Running) -> None:
    [view] = reported(broker)
    assert (view["pending"], view["topics"]) == (2 * COUNT, {"Soon": COUNT, "Far": COUNT})
    assert sum(view["per_minute"]["counts"]) >= COUNT
    shown = duemq("timers", *broker.where)
    assert f"{2 * COUNT} timers pending" in shown.stdout
    assert "next hour, by minute" in shown.stdout


def test_a_list_in_pages(broker: Running) -> None:
    pages = [reported(broker, "list", "--limit", "4", "--page", str(page)) for page in (1, 2, 3, 4)]
    assert [len(page["timers"]) for page in pages] == [4, 4, 2, 0]
    assert [page["more"] for page in pages] == [True, True, False, False]
    topics = [timer["topic"] for page in pages for timer in page["timers"]]
    assert topics == ["Soon"] * COUNT + ["Far"] * COUNT


@pytest.mark.parametrize(
    ("words", "topics"),
    [
        (("--topic", "Far"), {"Far"}),
        (("--key", "early"), {"Soon"}),
        (("--from", "+1h", "--to", "+3d"), {"Far"}),
        (("--to", "+1h"), {"Soon"}),
        (("--topic", "Absent"), set()),
    ],
)
def test_a_list_is_narrowed(broker: Running, words: tuple[str, ...], topics: set[str]) -> None:
    page = reported(broker, "list", *words)
    assert {timer["topic"] for timer in page["timers"]} == topics
    assert len(page["timers"]) == COUNT * len(topics)


def test_a_list_for_people(broker: Running) -> None:
    shown = duemq("timers", "list", "--limit", "3", *broker.where)
    assert "page 1 (there are more)" in shown.stdout
    assert shown.stdout.count("early") == 3


def test_a_key_that_is_unused(broker: Running) -> None:
    done = duemq("timers", "list", "--key", "absent", *broker.where)
    assert (done.returncode, done.stdout) == (Exit.FOUND_FAULT, "")
    assert "no pending timer has the key absent" in done.stderr


def test_the_forecast_counts_each_where_it_is_due(broker: Running) -> None:
    found = reported(broker, "forecast", "--by", "hour", "--count", "100")
    assert (found["pending"], found["before"], found["later"]) == (2 * COUNT, 0, 0)
    assert sum(found["counts"][:2]) == COUNT
    assert sum(found["counts"][47:50]) == COUNT
    shown = duemq("timers", "forecast", "--by", "hour", *broker.where)
    assert "█" in shown.stdout


@pytest.mark.finding("3U6")
@pytest.mark.parametrize("width", [60, 80, 200])
def test_the_forecast_fits_the_terminal(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    shown = io.StringIO()
    terminal = Console(width=width, file=shown, force_terminal=True, color_system=None)
    monkeypatch.setattr(timers_forecast, "console", lambda: terminal)
    counts = {"counts": [1, 10**10], "before": 0, "later": 0, "pending": 10**10 + 1}
    timers_forecast.print_forecast({"from_ms": 0, "width_ms": 60_000, **counts})
    lines = shown.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    assert len(lines) == 6  # no bar wraps


def test_follow_prints_repeatedly(broker: Running) -> None:
    done = duemq("timers", "follow", "--count", "2", "--json", *broker.where)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [len(line[0]["next"]) for line in lines] == [2 * COUNT, 2 * COUNT]
    shown = duemq("timers", "follow", "--count", "1", *broker.where)
    assert (shown.returncode, "early" in shown.stdout) == (0, True)


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("forecast", "--by", "year"), Exit.USAGE, "must be minute, hour, day"),
        (("forecast", "--count", "20000"), Exit.USAGE, "at most 10000"),
        (("list", "--from", "tomorrow"), Exit.USAGE, "cannot read the time 'tomorrow'"),
        (("--json", "list"), Exit.USAGE, "options go after the command"),
        (("list", "--broker", "127.0.0.1:1"), Exit.UNREACHABLE, "does not respond"),
    ],
)
def test_wrong_usage(words: tuple[str, ...], code: Exit, text: str) -> None:
    done = duemq("timers", *words)
    assert (done.returncode, text in done.stderr) == (code, True), done.stderr


@pytest.mark.parametrize(
    ("text", "time_ms"),
    [
        ("+90s", 1_090_000),
        ("+250ms", 1_000_250),
        ("+1d", 87_400_000),
        ("1790000000000", 1_790_000_000_000),
        ("1970-01-01T00:20", 1_200_000),
        ("1970-01-01T01:20:00+01:00", 1_200_000),
        ("1970-01-01T00:00:01.005Z", 1_005),
        ("+999999999999d", 10**18 - 1),
        pytest.param("+1h30m", 6_400_000, marks=pytest.mark.finding("B21")),
        pytest.param("+1w", 605_800_000, marks=pytest.mark.finding("B21")),
        pytest.param("+1h 30m", 6_400_000, marks=pytest.mark.finding("B21")),
    ],
)
def test_times_as_people_type_them(text: str, time_ms: int) -> None:
    assert parse_time(text, 1_000_000) == time_ms


@pytest.mark.parametrize("text", ["", "soon", "+5", "-5m", "12", "+5y", "+1h ", "+h", "2026-13-01"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(UsageError, match="cannot read the time"):
        parse_time(text, 0)


@pytest.mark.finding("B25")
def test_a_queue_id_is_a_number(broker: Running) -> None:
    [timer] = reported(broker, "list", "--limit", "1")["timers"]
    assert isinstance(timer["queue_id"], int)


@pytest.mark.finding("B12")
def test_a_whole_topic_is_not_cancelled_without_a_question(broker: Running) -> None:
    refused = duemq("timers", "cancel", "--topic", "Soon", *broker.where, input="")
    assert (refused.returncode, "add --yes" in refused.stderr) == (Exit.USAGE, True)
    dry = duemq("timers", "cancel", "--topic", "Soon", "--dry-run", *broker.where, input="")
    assert (dry.returncode, "would cancel" in dry.stdout) == (0, True), dry.stderr
    [view] = reported(broker)
    assert view["pending"] == 2 * COUNT


def test_bars() -> None:
    assert [len(bar(count, 80, BAR_COLUMNS)) for count in (0, 1, 40, 80)] == [
        0,
        1,
        BAR_COLUMNS // 2,
        BAR_COLUMNS,
    ]
    assert (sparks([]), sparks([0, 0])) == ("(none)", "(none)")
    assert sparks([0, 1, 8]) == " ▁█ (at most 8)"
    assert (table_time(None), table_time(0)) == ("", "1970-01-01 00:00:00.000")
    assert table_time(10**18 - 1) == "999999999999999999 ms"


def test_compaction_has_nothing_to_do_in_a_young_store(broker: Running) -> None:
    [response] = reported(broker, "compact", "--dry-run")["brokers"]
    assert (response["started"], response["messages"]) == (False, 0)
    assert "fileReservedTime" in response["why"]
    done = duemq("timers", "compact", *broker.where)
    assert done.returncode == 0, done.stderr
    assert "0 messages copied" in done.stdout
