"""The report of an audit as one HTML page that needs no network. A pure function of its rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any, Final

from reconciliation.summary import Summary
from reconciliation.verdicts import CLEAN

Rows = Sequence[Mapping[str, Any]]
BARS_MAX: Final = 240
WIDTH, HEIGHT = 960, 160
MS_MAX: Final = 253_402_300_799_999  # the last moment that a calendar date can be written of
STYLE: Final = """
body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:62rem;padding:0 1rem;color:#222}
table{border-collapse:collapse;margin:.5rem 0 1.5rem}
td,th{padding:.2rem .8rem .2rem 0;text-align:left;border-bottom:1px solid #ddd;vertical-align:top}
td.n{text-align:right;font-variant-numeric:tabular-nums}
.bad{color:#b00020;font-weight:600}.good{color:#17692f;font-weight:600}
svg{background:#f6f7f8;width:100%;height:auto}rect{fill:#3b6ea8}
"""


def html_report(
    summary: Summary, *, stores: Sequence[str], lateness: Rows = (), forecast: Rows = (), at_ms: int
) -> str:
    """Return the page.

    Args:
        lateness, forecast: rows of those jobs, in order.
        at_ms: when the audit was made.
    """
    parts = [
        f"<h1>Audit of {escape(', '.join(stores))}</h1>",
        f"<p>Made {time_text(at_ms)} UTC. {_verdict(summary)}</p>",
        "<h2>Verdicts</h2>",
        _table(("verdict", "messages"), [_verdict_row(*item) for item in summary.verdicts.items()]),
        *_lateness(summary, lateness),
        *_forecast(forecast),
        *_offenders(summary),
    ]
    head = f'<meta charset="utf-8"><title>DueMQ audit</title><style>{STYLE}</style>'
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{"".join(parts)}</body></html>'


def time_text(ms: int | None) -> str:
    """Return a time as people read it, to the millisecond; one beyond all calendars as ms."""
    if ms is None:
        return ""
    if not 0 <= ms <= MS_MAX:
        return f"{ms} ms"
    when = datetime.fromtimestamp(ms // 1_000, UTC)
    return f"{when:%Y-%m-%d %H:%M:%S}.{ms % 1_000:03d}"


def _verdict(summary: Summary) -> str:
    if not summary.complete:
        text = "Not everything could be read: the audit is incomplete."
        return f'<span class="bad">{text}</span>'
    if summary.clean:
        return f'<span class="good">Every promise was kept ({summary.messages:,} messages).</span>'
    return f'<span class="bad">There are findings ({summary.messages:,} messages).</span>'


def _verdict_row(name: str, count: int) -> list[str]:
    kind = "good" if name in CLEAN else "bad"
    return [f'<td class="{kind}">{escape(name)}</td>', _number(count)]


def _lateness(summary: Summary, rows: Rows) -> list[str]:
    known = [(name, ms) for name, ms in summary.lateness_ms.items() if ms is not None]
    if not known:
        return []
    lines = [[_text(name), _number(ms)] for name, ms in known]
    parts = ["<h2>Lateness</h2>", _table(("of deliveries", "ms"), lines)]
    if rows:
        worst: dict[int, int] = {}
        for row in rows:
            worst[row["from_ms"]] = max(worst.get(row["from_ms"], 0), row["p99_ms"])
        parts += ["<h3>99 of 100 were no later than, in ms</h3>", _bars(worst)]
        names = ("from_ms", "level", "topic", "messages", "p50_ms", "p99_ms", "max_ms")
        parts.append(_rows(names, rows[:BARS_MAX]))
    return parts


def _forecast(rows: Rows) -> list[str]:
    if not rows:
        return []
    due: dict[int, int] = {}
    for row in rows:
        due[row["from_ms"]] = due.get(row["from_ms"], 0) + row["messages"]
    return ["<h2>What falls due</h2>", _bars(due)]


def _offenders(summary: Summary) -> list[str]:
    names = ("verdict", "store", "root", "topic", "unique_id", "due_ms", "delivered_ms", "why")
    parts = ["<h2>Findings</h2>", _rows(names, summary.offenders)] if summary.offenders else []
    if summary.unread:
        places = ("store", "phys_offset", "damage")
        parts += ["<h2>Not read</h2>", _rows(places, summary.unread)]
    return parts


def _bars(values: Mapping[int, int]) -> str:
    """Return a bar for each time, the highest ones where there are too many to draw."""
    times = sorted(values)
    step = -(-len(times) // BARS_MAX)
    heights = [max(values[t] for t in times[at : at + step]) for at in range(0, len(times), step)]
    top, width = max(*heights, 1), WIDTH / len(heights)
    bars = "".join(
        f'<rect x="{at * width:.1f}" y="{HEIGHT - HEIGHT * max(height, 0) / top:.1f}" '
        f'width="{width * 0.85:.1f}" height="{HEIGHT * max(height, 0) / top:.1f}"/>'
        for at, height in enumerate(heights)
    )
    span = f"{time_text(times[0])} to {time_text(times[-1])} UTC; highest {top:,}"
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img">{bars}</svg><p>{span}</p>'


def _rows(names: Sequence[str], rows: Rows) -> str:
    lines = [[_cell(name, row.get(name)) for name in names] for row in rows]
    return _table([name.removesuffix("_ms") for name in names], lines)


def _cell(name: str, value: Any) -> str:
    if name in ("due_ms", "delivered_ms", "from_ms"):
        return _text(time_text(value))
    return _number(value) if isinstance(value, int) else _text(value)


def _text(value: Any) -> str:
    return f"<td>{escape('' if value is None else str(value))}</td>"


def _number(value: int) -> str:
    return f'<td class="n">{value:,}</td>'


def _table(names: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = "".join(f"<tr>{''.join(line)}</tr>" for line in lines)
    return f"<table><tr>{head}</tr>{body}</table>"
