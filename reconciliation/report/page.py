"""HTML report of an audit, self-contained. A pure function of its rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Final

from message_store.page_style import STYLE
from reconciliation.audit.summary import Summary
from reconciliation.audit.verdicts import CLEAN
from reconciliation.report.charts import SERIES_MAX, bars, lines
from reconciliation.report.charts import time_text as time_text

Rows = Sequence[Mapping[str, Any]]
ROWS_MAX: Final = 200
MINUTE_MS: Final = 60_000
NO_NUMBERS: Final = frozenset({"level"})
TIMES: Final = frozenset(
    {
        *("due_ms", "delivered_ms", "from_ms", "until_ms", "peak_at_ms", "promised_ms", "store_ms"),
        *("first_due_ms", "last_due_ms"),
    }
)
WORDS: Final = frozenset({"why", "note", "store", "file"})
GOOD: Final = frozenset({"ok", "moved"})  # what is only pending or cancelled is no success yet
LIKE_MAX: Final = 3  # of rows that say the same one after the other


@dataclass(frozen=True, slots=True, kw_only=True)
class Pages:
    """What a report shows beside the summary: rows of the jobs, in order."""

    totals: Rows = ()
    lateness: Rows = ()
    trend: Rows = ()
    worst: Rows = ()
    forecast: Rows = ()  # of `jobs.capacity`
    days: Rows = ()
    proof: Rows = ()


def html_report(
    summary: Summary, *, stores: Sequence[str], pages: Pages | None = None, at_ms: int
) -> str:
    """Return the page.

    Args:
        at_ms: when the audit was made.
    """
    pages = pages or Pages()
    parts = [
        f"<h1>Audit of {escape(', '.join(stores))}</h1>",
        f'<p class="soft">Made {time_text(at_ms)} UTC</p>',
        _verdict(summary),
        _tiles(summary),
        _verdicts(summary),
        _offenders(summary),
        _totals(summary, pages),
        _lateness(pages),
        _worst(pages),
        _forecast(pages),
        _proof(pages),
    ]
    view = '<meta name="viewport" content="width=device-width, initial-scale=1">'
    head = f'<meta charset="utf-8">{view}<title>DueMQ audit</title><style>{STYLE}</style>'
    body = "\n".join(parts)
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{body}</body></html>'


def _verdict(summary: Summary) -> str:
    if not summary.complete:
        text = "Not everything could be read: the audit is incomplete."
        return f'<p class="bad">{text}</p>'
    if summary.clean:
        return f'<p class="good">Every promise was kept ({summary.messages:,} messages).</p>'
    return f'<p class="bad">There are findings ({summary.messages:,} messages).</p>'


def _tiles(summary: Summary) -> str:
    findings = sum(n for name, n in summary.verdicts.items() if name not in CLEAN)
    facts = [
        ("messages", summary.messages, ""),
        ("findings", findings, "bad" if findings else "good"),
        ("pending", summary.verdicts.get("pending", 0), ""),
        *((f"late by, {name}, ms", ms, "") for name, ms in summary.lateness_ms.items()),
    ]
    tiles = [
        f'<div class="card tile"><b class="{kind}">{value:,}</b><span>{escape(name)}</span></div>'
        for name, value, kind in facts
        if value is not None
    ]
    return f'<div class="tiles">{"".join(tiles)}</div>'


def _verdicts(summary: Summary) -> str:
    whole = max(summary.messages, 1)
    rows = []
    for name, count in summary.verdicts.items():
        kind = "" if name in CLEAN - GOOD else "good" if name in GOOD else "bad"
        share = f'<td class="number">{100 * count / whole:.2f} %</td>'
        state = f'<td><span class="state {kind}">{escape(name)}</span></td>'
        rows.append([state, _number(count), share])
    return _section("Verdicts", _table(("verdict", "messages", "share"), rows))


def _offenders(summary: Summary) -> str:
    names: tuple[str, ...]
    names = ("verdict", "why", "topic", "due_ms", "delivered_ms", "unique_id", "root", "store")
    text = ""
    if summary.offenders:
        text += _section(
            "Findings", _folded(names, summary.offenders, ("verdict", "store", "topic", "why"))
        )
    if summary.unread:
        names = ("store", "damage", "file", "offset", "note")
        text += _section("Not read", _folded(names, summary.unread, ("store", "damage", "note")))
    if summary.clock:
        why = f'<p class="soft">{escape(clock_text(summary))}</p>'
        names = ("store", "phys_offset", "file", "offset", "note")
        clock = _folded(names, summary.clock, ("store",))
        text += _section("The clock was set back", why + clock)
    return text


def _totals(summary: Summary, pages: Pages) -> str:
    if not pages.totals:
        return ""
    names = ("level", "topic", "messages", "delivered", "findings", "p50_ms", "p90_ms", "p99_ms",
             "p999_ms", "max_ms")  # fmt: skip
    note = '<p class="soft">Lateness of deliveries, in ms; level “timer”: a time was asked for.</p>'
    return _section("By level and topic", note + _rows(names, pages.totals))


def _lateness(pages: Pages) -> str:
    if not pages.lateness:
        return ""
    series: dict[str, dict[int, float]] = {}
    weight: dict[str, int] = {}
    for row in pages.lateness:
        name = f"{_level(row.get('level'))}, {row['topic']}"
        series.setdefault(name, {})[row["from_ms"]] = row["p99_ms"]
        weight[name] = weight.get(name, 0) + row["messages"]
    order = sorted(series, key=lambda name: (-weight[name], name))
    chart = lines({name: series[name] for name in order}, unit="ms")
    left = len(order) - SERIES_MAX
    note = f'<p class="soft">{left} more with fewer messages are not drawn.</p>' if left > 0 else ""
    names = ("level", "topic", "pieces", "messages", "first_p99_ms", "last_p99_ms", "worst_p99_ms",
             "p99_ms_per_day", "trend")  # fmt: skip
    text = '<p class="soft">99 of 100 deliveries were no later than this.</p>'
    return _section("Lateness", text + chart + note + _rows(names, pages.trend))


def _worst(pages: Pages) -> str:
    if not pages.worst:
        return ""
    names = ("late_ms", "level", "topic", "unique_id", "due_ms", "delivered_ms", "store", "root")
    return _section(
        "The latest deliveries", _folded(names, pages.worst, ("level", "topic", "store"))
    )


def _forecast(pages: Pages) -> str:
    if not pages.forecast:
        return ""
    load = {row["from_ms"]: row["per_second"] for row in pages.forecast}
    limit = pages.forecast[0].get("capacity_per_s")
    piece_ms = min(row["until_ms"] - row["from_ms"] for row in pages.forecast)
    chart = bars(load, unit="messages a second", piece_ms=piece_ms, limit=limit)
    worst = max(row.get("behind_ms") or 0 for row in pages.forecast)
    text = f"Dashed: {limit:,.2f} a second" if limit is not None else "Pending"
    late = f"; the last message of the heaviest time would be {worst:,} ms behind it"
    note = f'<p class="soft">{text}{late}. A bar is {_length(piece_ms)} wide.</p>'
    days = _rows(("day", "messages", "peak_at_ms", "peak_per_s"), pages.days) if pages.days else ""
    return _section("What falls due", chart + note + days)


def _proof(pages: Pages) -> str:
    if not pages.proof:
        return ""
    open_ones = sum(row["not_proven"] for row in pages.proof)
    kind, said = ("bad", f"{open_ones:,} messages are not proven.") if open_ones else (
        "good", "Each message came exactly once at its promised time, or is pending until then."
    )  # fmt: skip
    names = ("migration", "level", "way", "messages", "delivered", "pending", "ended", "not_proven")
    text = f'<p class="{kind}">{said}</p>'
    return _section("Proof of migrations", text + _rows(names, pages.proof))


def _section(title: str, inner: str) -> str:
    return f'<section><h2>{escape(title)}</h2><div class="card">{inner}</div></section>'


def _length(ms: int) -> str:
    if ms == MINUTE_MS:
        return "a minute"
    return f"{ms // MINUTE_MS:,} minutes" if ms % MINUTE_MS == 0 else f"{ms:,} ms"


def clock_text(summary: Summary) -> str:
    """Return what it means for an audit that the clock was set back."""
    if summary.excused:
        return (
            f"{summary.excused:,} messages were delivered before their time, passed by or overdue "
            "only because the clock was set back: findings, unless --trust-clock is given."
        )
    return "No message depends on it: lateness and what is overdue are of this clock."


def _folded(names: Sequence[str], rows: Rows, same: Sequence[str]) -> str:
    """Return a table of rows; those that agree in some columns with many before are folded away."""
    if len({row.get("store") for row in rows}) == 1:  # the heading names it
        names = [name for name in names if name != "store"]
    seen: dict[tuple[Any, ...], int] = {}
    first: list[Mapping[str, Any]] = []
    rest: list[Mapping[str, Any]] = []
    for row in rows:
        key = tuple(row.get(name) for name in same)
        seen[key] = seen.get(key, 0) + 1
        (first if seen[key] <= LIKE_MAX else rest).append(row)
    text = _rows(names, first)
    if rest:
        text += f"<details><summary>{len(rest):,} more like these</summary>"
        text += f"{_rows(names, rest)}</details>"
    return text


def _rows(names: Sequence[str], rows: Rows) -> str:
    shown = rows[:ROWS_MAX]
    cells = [[_cell(name, row.get(name)) for name in names] for row in shown]
    right = {
        name
        for name in names
        if name not in TIMES | NO_NUMBERS
        and any(isinstance(row.get(name), int | float) for row in shown)
    }
    more = len(rows) - len(shown)
    note = f'<p class="soft">{more:,} more rows.</p>' if more > 0 else ""
    return (
        _table([name.removesuffix("_ms").replace("_", " ") for name in names], cells, right) + note
    )


def shown_cell(name: str, value: Any) -> str:
    """Return a value of a column as people read it: times, levels, numbers."""
    if value is None:
        return "timer" if name == "level" else ""
    if name in TIMES and isinstance(value, int):
        return time_text(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"


def _cell(name: str, value: Any) -> str:
    number = isinstance(value, int | float) and name not in TIMES | NO_NUMBERS
    kind = "when" if name in TIMES else "number" if number else "words" if name in WORDS else ""
    mark = f' class="{kind}"' if kind else ""
    return f"<td{mark}>{escape(shown_cell(name, value))}</td>"


def _level(value: Any) -> str:
    return "timers" if value is None else f"level {value}"


def _number(value: int) -> str:
    return f'<td class="number">{value:,}</td>'


def _table(
    names: Sequence[str],
    lines: Sequence[Sequence[str]],
    right: frozenset[str] | set[str] = frozenset(),
) -> str:
    numbers = {name.removesuffix("_ms").replace("_", " ") for name in right} | {"messages", "share"}
    head = "".join(
        f'<th class="number">{escape(name)}</th>' if name in numbers else f"<th>{escape(name)}</th>"
        for name in names
    )
    body = "".join(f"<tr>{''.join(line)}</tr>" for line in lines)
    return f"<table><tr>{head}</tr>{body}</table>"
