"""The report of an audit as one HTML page that needs no network. A pure function of its rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Final

from reconciliation.report_charts import SERIES_MAX, bars, lines
from reconciliation.report_charts import time_text as time_text
from reconciliation.summary import Summary
from reconciliation.verdicts import CLEAN

Rows = Sequence[Mapping[str, Any]]
ROWS_MAX: Final = 200
NO_NUMBERS: Final = frozenset({"level"})
TIMES: Final = frozenset(
    {
        *("due_ms", "delivered_ms", "from_ms", "until_ms", "peak_at_ms", "promised_ms", "store_ms"),
        *("first_due_ms", "last_due_ms"),
    }
)
STYLE: Final = """
:root{--ink:#20262c;--soft:#66717c;--line:#dfe3e7;--bad:#b3261e;--good:#1b6e36;--sheet:#fff}
body{font:15px/1.5 system-ui,sans-serif;margin:0;background:#f3f5f7;color:var(--ink)}
main{max-width:64rem;margin:2rem auto;padding:0 1.2rem}
h1{font-size:1.5rem;margin:0 0 .2rem}h2{font-size:1.1rem;margin:0 0 .6rem}
section{background:var(--sheet);border:1px solid var(--line);border-radius:8px;padding:1rem 1.2rem;
margin:1rem 0;overflow-x:auto}
.tiles{display:flex;flex-wrap:wrap;gap:.8rem;margin:1rem 0}
.tile{background:var(--sheet);border:1px solid var(--line);border-radius:8px;padding:.6rem 1.1rem}
.tile b{display:block;font-size:1.45rem;font-variant-numeric:tabular-nums}
.tile span,.note{color:var(--soft);font-size:.85rem}
table{border-collapse:collapse;width:100%}
td,th{padding:.25rem .9rem .25rem 0;text-align:left;border-bottom:1px solid var(--line);
vertical-align:top;overflow-wrap:anywhere}
th{font-weight:600;color:var(--soft);font-size:.85rem}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
td.t{white-space:nowrap}
.bad{color:var(--bad);font-weight:600}.good{color:var(--good);font-weight:600}
svg{width:100%;height:auto;font:11px system-ui,sans-serif;fill:var(--soft)}
.grid{stroke:var(--line)}.line{fill:none;stroke-width:2}.limit{stroke:var(--bad);
stroke-dasharray:6 4}rect{fill:#3b6ea8}
.legend{margin:.2rem 0 0}.key{margin-right:1.2rem;white-space:nowrap;font-size:.85rem}
.key i{display:inline-block;width:.8rem;height:.8rem;border-radius:2px;margin-right:.35rem}
@media(prefers-color-scheme:dark){:root{--ink:#e6e9ec;--soft:#9aa6b2;--line:#333b43;--bad:#ff8a80;
--good:#81c995;--sheet:#1d2328}body{background:#14181c}}
"""


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
        f'<p class="note">Made {time_text(at_ms)} UTC</p>',
        f"<p>{_verdict(summary)}</p>",
        _tiles(summary),
        _verdicts(summary),
        _offenders(summary),
        _totals(summary, pages),
        _lateness(pages),
        _worst(pages),
        _forecast(pages),
        _proof(pages),
    ]
    view = '<meta name="viewport" content="width=device-width">'
    head = f'<meta charset="utf-8">{view}<title>DueMQ audit</title><style>{STYLE}</style>'
    body = f"<main>{''.join(parts)}</main>"
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{body}</body></html>'


def _verdict(summary: Summary) -> str:
    if not summary.complete:
        text = "Not everything could be read: the audit is incomplete."
        return f'<span class="bad">{text}</span>'
    if summary.clean:
        return f'<span class="good">Every promise was kept ({summary.messages:,} messages).</span>'
    return f'<span class="bad">There are findings ({summary.messages:,} messages).</span>'


def _tiles(summary: Summary) -> str:
    findings = sum(n for name, n in summary.verdicts.items() if name not in CLEAN)
    facts = [
        ("messages", summary.messages, ""),
        ("findings", findings, "bad" if findings else "good"),
        ("waiting", summary.verdicts.get("pending", 0), ""),
        *((f"late by, {name}, ms", ms, "") for name, ms in summary.lateness_ms.items()),
    ]
    tiles = [
        f'<div class="tile"><b class="{kind}">{value:,}</b><span>{escape(name)}</span></div>'
        for name, value, kind in facts
        if value is not None
    ]
    return f'<div class="tiles">{"".join(tiles)}</div>'


def _verdicts(summary: Summary) -> str:
    whole = max(summary.messages, 1)
    rows = []
    for name, count in summary.verdicts.items():
        kind = "good" if name in CLEAN else "bad"
        share = f'<td class="n">{100 * count / whole:.2f} %</td>'
        rows.append([f'<td class="{kind}">{escape(name)}</td>', _number(count), share])
    return _section("Verdicts", _table(("verdict", "messages", "share"), rows))


def _offenders(summary: Summary) -> str:
    names: tuple[str, ...]
    names = ("verdict", "store", "root", "topic", "unique_id", "due_ms", "delivered_ms", "why")
    text = ""
    if summary.offenders:
        text += _section("Findings", _rows(names, summary.offenders))
    if summary.unread:
        names = ("store", "damage", "file", "offset", "note")
        text += _section("Not read", _rows(names, summary.unread))
    if summary.clock:
        why = '<p class="note">No loss: lateness and what is overdue are of this clock.</p>'
        clock = _rows(("store", "phys_offset", "file", "offset", "note"), summary.clock)
        text += _section("The clock was set back", why + clock)
    return text


def _totals(summary: Summary, pages: Pages) -> str:
    if not pages.totals:
        return ""
    names = ("level", "topic", "messages", "delivered", "findings", "p50_ms", "p90_ms", "p99_ms",
             "p999_ms", "max_ms")  # fmt: skip
    note = '<p class="note">Lateness of deliveries, in ms; level “timer”: a time was asked for.</p>'
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
    note = f'<p class="note">{left} more with fewer messages are not drawn.</p>' if left > 0 else ""
    names = ("level", "topic", "pieces", "messages", "first_p99_ms", "last_p99_ms", "worst_p99_ms",
             "p99_ms_per_day", "trend")  # fmt: skip
    text = '<p class="note">99 of 100 deliveries were no later than this.</p>'
    return _section("Lateness", text + chart + note + _rows(names, pages.trend))


def _worst(pages: Pages) -> str:
    if not pages.worst:
        return ""
    names = ("late_ms", "level", "topic", "unique_id", "due_ms", "delivered_ms", "store", "root")
    return _section("The latest deliveries", _rows(names, pages.worst))


def _forecast(pages: Pages) -> str:
    if not pages.forecast:
        return ""
    load = {row["from_ms"]: row["per_second"] for row in pages.forecast}
    limit = pages.forecast[0].get("capacity_per_s")
    chart = bars(load, unit="messages a second", limit=limit)
    worst = max(row.get("behind_ms") or 0 for row in pages.forecast)
    text = f"Dashed: {limit:,.2f} a second" if limit is not None else "What waits"
    late = f"; the last message of the heaviest time would be {worst:,} ms behind it"
    note = f'<p class="note">{text}{late}. A piece is a minute.</p>'
    days = _rows(("day", "messages", "peak_at_ms", "peak_per_s"), pages.days) if pages.days else ""
    return _section("What falls due", chart + note + days)


def _proof(pages: Pages) -> str:
    if not pages.proof:
        return ""
    open_ones = sum(row["not_proven"] for row in pages.proof)
    kind, said = ("bad", f"{open_ones:,} messages are not proven.") if open_ones else (
        "good", "Each message came exactly once at its promised time, or waits for it."
    )  # fmt: skip
    names = ("migration", "level", "way", "messages", "delivered", "pending", "ended", "not_proven")
    text = f'<p class="{kind}">{said}</p>'
    return _section("Proof of migrations", text + _rows(names, pages.proof))


def _section(title: str, inner: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{inner}</section>"


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
    note = f'<p class="note">{more:,} more rows.</p>' if more > 0 else ""
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
    kind = "t" if name in TIMES else "n" if number else ""
    mark = f' class="{kind}"' if kind else ""
    return f"<td{mark}>{escape(shown_cell(name, value))}</td>"


def _level(value: Any) -> str:
    return "timers" if value is None else f"level {value}"


def _number(value: int) -> str:
    return f'<td class="n">{value:,}</td>'


def _table(
    names: Sequence[str],
    lines: Sequence[Sequence[str]],
    right: frozenset[str] | set[str] = frozenset(),
) -> str:
    numbers = {name.removesuffix("_ms").replace("_", " ") for name in right} | {"messages", "share"}
    head = "".join(
        f'<th class="n">{escape(name)}</th>' if name in numbers else f"<th>{escape(name)}</th>"
        for name in names
    )
    body = "".join(f"<tr>{''.join(line)}</tr>" for line in lines)
    return f"<table><tr>{head}</tr>{body}</table>"
