"""History page of one migration: volume, speed, lateness, operators.

A page is one file without scripts and external resources, so that it can be attached to a ticket
and archived. All text from the ledger is escaped. Times are in UTC.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from html import escape
from statistics import median
from typing import Final

from duemq_common.charts import COLOURS, Series, chart, time_text
from duemq_common.page_style import STYLE
from duemq_migration.ledger.records import EventRecord, LedgerLevel, MigrationRun, SampleRecord
from duemq_migration.ownership.states import State

STEP_KINDS: Final = frozenset({"handover", "giveback"})
"""Frequent events; the page merges them."""
NOTHING: Final = "–"
POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"
_NOT_TEXT = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


def history_page(run: MigrationRun, *, store: str, made_ms: int) -> str:
    """Return the page of one run as HTML that is also well-formed XML.

    Args:
        store: Path of the store, for the heading.
        made_ms: Current time, in ms since the epoch.
    """
    sections = (
        _head(run, store),
        _tiles(run),
        _levels(run),
        _rate(run),
        _lateness(run),
        _verifications(run),
        _plan(run),
        _events(run),
        f'<p class="soft">Made {_time_text(made_ms)} UTC.</p>',
    )
    return (
        '<!DOCTYPE html>\n<html lang="en" xmlns="http://www.w3.org/1999/xhtml">\n<head>\n'
        f'<meta charset="utf-8"/>\n<title>{_text(run.migration.migration_id)}</title>\n'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(POLICY)}"/>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>\n'
        f"<style>{STYLE}</style>\n</head>\n<body>\n" + "\n".join(sections) + "\n</body>\n</html>\n"
    )


def span_of(run: MigrationRun) -> tuple[int, int]:
    """Return start and end of a run in ms; the end of an unfinished run is its newest record."""
    last = [level.updated_ms for level in run.levels] + [event.at_ms for event in run.events]
    end = run.migration.ended_ms
    first = run.migration.started_ms
    return first, max(first, max(last, default=first) if end is None else end)


def phases(run: MigrationRun) -> dict[str, list[SampleRecord]]:
    """Return the samples before, during and after a run."""
    first, _ = span_of(run)
    end = run.migration.ended_ms
    samples: dict[str, list[SampleRecord]] = {"before": [], "during": [], "after": []}
    for sample in run.samples:
        over = end is not None and sample.at_ms > end
        samples["after" if over else "before" if sample.at_ms <= first else "during"].append(sample)
    return samples


def _head(run: MigrationRun, store: str) -> str:
    record = run.migration
    by = f" by {_text(record.started_by)}" if record.started_by else ""
    plan = f", plan <code>{_text(record.plan_id)}</code>" if record.plan_id else ""
    end = NOTHING if record.ended_ms is None else f"{_time_text(record.ended_ms)} UTC"
    return (
        f"<h1>{_text(record.migration_id)}</h1>\n"
        f'<p class="soft">Store <code>{_text(store)}</code>, {_text(record.mode)}{plan}</p>\n'
        f'<p class="soft">Started {_time_text(record.started_ms)} UTC{by}; ended {end}</p>'
    )


def _tiles(run: MigrationRun) -> str:
    first, last = span_of(run)
    rates = [sample.rate_per_s for sample in run.samples if sample.rate_per_s > 0]
    during = [s.late_p99_ms for s in phases(run)["during"] if s.late_p99_ms is not None]
    tiles = [
        (_count(sum(level.moved for level in run.levels)), "messages transferred"),
        (_count(sum(level.routed for level in run.levels)), "new messages stored as timers"),
        (_count(sum(level.returned for level in run.levels)), "returned to levels"),
        (_bytes(sum(level.moved_bytes for level in run.levels)), "of timer units written"),
        (_duration(last - first), "from start to end"),
        (_rate_text(max(rates)) if rates else NOTHING, "fastest"),
        (_ms(max(during)) if during else NOTHING, "highest p99 lateness during the run"),
    ]
    shown = (f'<div class="card tile"><b>{a}</b><span>{b}</span></div>' for a, b in tiles)
    return f'<div class="tiles">{"".join(shown)}</div>'


def _levels(run: MigrationRun) -> str:
    planned = {level.level: level.pending for level in run.plan.levels} if run.plan else {}
    rows = [
        [
            f"{level.level}",
            _state(level),
            _progress(level.moved, planned.get(level.level)),
            _count(level.excluded),
            _count(level.routed),
            _count(level.returned),
            _count(level.fence),
            _count(level.cursor),
        ]
        for level in run.levels
    ]
    names = "Level|State|#Transferred|#Settled before|#New timers|#Returned|#Fence|#Cursor"
    return _section("Levels", _table(names, rows))


def _state(level: LedgerLevel) -> str:
    name = level.state.replace("_", " ")
    style = "good" if level.state == State.DONE else ""
    text = f'<span class="state {style}">{name}</span>'
    if level.paused:
        cause = _text(level.cause)
        text += f' <span class="state bad">paused</span><p class="soft words">{cause}</p>'
    return text


def _progress(moved: int, planned: int | None) -> str:
    if not planned:
        return _count(moved)
    share = min(max(moved / planned, 0), 1) * 100
    bar = f'<div class="bar"><i style="width: {share:.1f}%"></i></div>'
    return f"{_count(moved)} of {_count(planned)} planned{bar}"


def _rate(run: MigrationRun) -> str:
    points = [(sample.at_ms, sample.rate_per_s) for sample in run.samples]
    series = [Series("messages a second", points, filled=True)]
    return _section("Rate", _chart("Rate", series, run, _rate_text))


def _lateness(run: MigrationRun) -> str:
    series = [
        Series("p99", [(sample.at_ms, sample.late_p99_ms) for sample in run.samples]),
        Series("p50", [(sample.at_ms, sample.late_p50_ms) for sample in run.samples], COLOURS[1]),
    ]
    drawn = _chart("Lateness", series, run, _ms)
    rows = [[name, *_lateness_row(samples)] for name, samples in phases(run).items()]
    names = "|#Deliveries|#p50, typical|#p99, typical|#p99, highest|#Latest"
    return _section("Lateness of deliveries", drawn + _table(names, rows))


def _lateness_row(samples: Sequence[SampleRecord]) -> list[str]:
    def over(pick: Callable[[list[int]], float], values: Iterable[int | None]) -> str:
        measured = [value for value in values if value is not None]
        return _ms(pick(measured)) if measured else NOTHING

    return [
        _count(sum(sample.delivered for sample in samples)),
        over(median, (sample.late_p50_ms for sample in samples)),
        over(median, (sample.late_p99_ms for sample in samples)),
        over(max, (sample.late_p99_ms for sample in samples)),
        over(max, (sample.late_max_ms for sample in samples)),
    ]


def _chart(
    title: str, series: Sequence[Series], run: MigrationRun, shown: Callable[[float], str]
) -> str:
    """Return a chart with the time of the run and its events."""
    events = [
        (event.at_ms, _clean(f"{event.kind} {event.text}"))
        for event in run.events
        if event.kind not in STEP_KINDS
    ]
    return chart(title, series, shown=shown, band=("the run", *span_of(run)), annotations=events)


def _verifications(run: MigrationRun) -> str:
    rows = [
        [
            _when(item.at_ms),
            f"{item.level}",
            '<span class="state good">agrees</span>'
            if item.agrees
            else '<span class="state bad">differs</span>',
            f"{_count(item.levels_count)}<br/><code>{item.levels_checksum:016x}</code>",
            f"{_count(item.timers_count)}<br/><code>{item.timers_checksum:016x}</code>",
            f'<span class="words">{_text(item.text)}</span>',
        ]
        for item in run.verifications
    ]
    names = "Time|Level|Result|#Level messages|#Timers|Remark"
    return _section("Verifications", _table(names, rows, empty="Nothing was verified."))


def _plan(run: MigrationRun) -> str:
    if run.plan is None:
        return ""
    rows = [
        [
            f"{level.level}",
            _duration(level.delay_ms),
            _count(level.pending),
            _bytes(level.pending_bytes),
            NOTHING if level.first_due_ms is None else _time_text(level.first_due_ms),
            NOTHING if level.last_due_ms is None else _time_text(level.last_due_ms),
            _count(level.overdue),
            _duration(level.estimate_ms),
        ]
        for level in run.plan.levels
    ]
    names = "Level|#Delay|#Pending|#Bytes|#First due|#Last due|#Overdue|#Estimate"
    made_by = _text(run.plan.made_by)
    text = f'<p class="soft">Made {_time_text(run.plan.made_ms)} UTC by {made_by}</p>'
    for item in run.plan.obstacles:
        where = "" if item.level is None else f"level {item.level}: "
        text += f'<p class="words">{where}{_text(item.text)} ({_count(item.count)})</p>'
    return _section("Plan", text + _table(names, rows))


def _events(run: MigrationRun) -> str:
    few = [event for event in run.events if event.kind not in STEP_KINDS]
    text = _event_table(few)
    if len(few) < len(run.events):
        every = _event_table(run.events)
        text += f"<details><summary>Every step ({len(run.events)})</summary>{every}</details>"
    return _section("Events", text)


def _event_table(events: Iterable[EventRecord]) -> str:
    rows = [
        [
            _when(event.at_ms),
            NOTHING if event.level is None else f"{event.level}",
            _text(event.kind),
            f'<span class="words">{_text(event.operator)}</span>',
            f'<span class="words">{_text(event.text)}</span>',
        ]
        for event in events
    ]
    return _table("Time|Level|Event|Operator|Remark", rows, empty="No events.")


def _section(title: str, body: str) -> str:
    return f'<h2>{title}</h2>\n<div class="card">{body}</div>'


def _table(names: str, rows: Sequence[Sequence[str]], *, empty: str = "None.") -> str:
    """Return a table of HTML cells; `#` before a column's name right-aligns its numbers."""
    if not rows:
        return f'<p class="empty">{empty}</p>'
    heads = names.split("|")
    style = [' class="number"' if name.startswith("#") else "" for name in heads]
    head = "".join(
        f"<th{look}>{name.removeprefix('#')}</th>" for look, name in zip(style, heads, strict=True)
    )
    body = "\n".join(
        "<tr>"
        + "".join(f"<td{look}>{cell}</td>" for look, cell in zip(style, row, strict=True))
        + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table>"


def _clean(text: str) -> str:
    return _NOT_TEXT.sub("\ufffd", text)


def _text(text: str) -> str:
    return escape(_clean(text))


def _when(at_ms: int) -> str:
    return f'<span class="when">{_time_text(at_ms)}</span>'


def _time_text(ms: int) -> str:
    """Return a time as text, with seconds."""
    return time_text(ms).partition(".")[0]


def _count(number: float) -> str:
    return f"{number:,.0f}"


def _rate_text(rate: float) -> str:
    for limit, unit in ((1e6, " M/s"), (1e4, " k/s")):
        if rate >= limit:
            return f"{rate / (1e6 if limit == 1e6 else 1e3):.3g}{unit}"
    return f"{rate:,.0f}/s"


def _bytes(count: int) -> str:
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1_024:
            return f"{size:.3g} {unit}" if size < 1_000 else f"{size:.0f} {unit}"
        size /= 1_024
    return f"{size:,.1f} TiB"


def _ms(ms: float) -> str:
    return f"{ms:,.0f} ms" if ms < 10_000 else _duration(int(ms))


def _duration(ms: int) -> str:
    if ms < 1_000:
        return f"{ms} ms"
    seconds = ms / 1_000
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [(days, "d"), (hours, "h"), (minutes, "min"), (int(seconds), "s")]
    return " ".join(f"{count} {unit}" for count, unit in parts if count)
