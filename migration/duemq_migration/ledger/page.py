"""History page of one migration: volume, speed, lateness, operators.

A page is one file without scripts and external resources, so that it can be attached to a ticket
and archived. All text from the ledger is escaped. Times are in UTC.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Final

from duemq_common.charts import COLOURS, Series, chart, time_text
from duemq_common.report_page import ReportTable, clean_text, render_report
from duemq_common.text import binary_size, duration
from duemq_migration.ledger.records import EventRecord, LedgerLevel, MigrationRun, SampleRecord
from duemq_migration.ownership.states import State

TEMPLATE: Final = Path(__file__).with_name("history.html")
STEP_KINDS: Final = frozenset({"handover", "giveback"})
"""Frequent events; the page merges them."""
NOTHING: Final = "–"


def history_page(run: MigrationRun, *, store: str, made_ms: int) -> str:
    """Return the page of one run as HTML that is also well-formed XML.

    Args:
        store: Path of the store, for the heading.
        made_ms: Current time, in ms since the epoch.
    """
    few = [event for event in run.events if event.kind not in STEP_KINDS]
    return render_report(
        TEMPLATE,
        run=run,
        store=store,
        made_ms=made_ms,
        clock=_time_text,
        figures=_figures(run),
        levels=_levels(run),
        rate_chart=_rate_chart(run),
        lateness_chart=_lateness_chart(run),
        lateness=_lateness(run),
        verifications=_verifications(run),
        plan=_plan(run),
        events=_event_table(few),
        steps=_event_table(run.events),
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


def _figures(run: MigrationRun) -> list[tuple[str, str, str]]:
    first, last = span_of(run)
    rates = [sample.rate_per_s for sample in run.samples if sample.rate_per_s > 0]
    during = [s.late_p99_ms for s in phases(run)["during"] if s.late_p99_ms is not None]
    tiles = [
        (_count(sum(level.moved for level in run.levels)), "messages transferred"),
        (_count(sum(level.routed for level in run.levels)), "new messages stored as timers"),
        (_count(sum(level.returned for level in run.levels)), "returned to levels"),
        (binary_size(sum(level.moved_bytes for level in run.levels)), "of timer units written"),
        (duration(last - first), "from start to end"),
        (_rate_text(max(rates)) if rates else NOTHING, "fastest"),
        (_ms(max(during)) if during else NOTHING, "highest p99 lateness during the run"),
    ]
    return [(name, value, "") for value, name in tiles]


def _levels(run: MigrationRun) -> ReportTable:
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
    return ReportTable.of_columns(names, rows)


def _state(level: LedgerLevel) -> str:
    from markupsafe import Markup

    style = "good" if level.state == State.DONE else ""
    name = Markup('<span class="state {}">{}</span>')
    text = name.format(style, level.state.replace("_", " "))
    if level.paused:
        paused = Markup(' <span class="state bad">paused</span><p class="soft words">{}</p>')
        text += paused.format(clean_text(level.cause))
    return text


def _progress(moved: int, planned: int | None) -> str:
    if not planned:
        return _count(moved)
    from markupsafe import Markup

    share = min(max(moved / planned, 0), 1) * 100
    bar = Markup('{} of {} planned<div class="bar"><i style="width: {:.1f}%"></i></div>')
    return bar.format(_count(moved), _count(planned), share)


def _rate_chart(run: MigrationRun) -> str:
    points = [(sample.at_ms, sample.rate_per_s) for sample in run.samples]
    series = [Series("messages a second", points, filled=True)]
    return _chart("Rate", series, run, _rate_text)


def _lateness_chart(run: MigrationRun) -> str:
    series = [
        Series("p99", [(sample.at_ms, sample.late_p99_ms) for sample in run.samples]),
        Series("p50", [(sample.at_ms, sample.late_p50_ms) for sample in run.samples], COLOURS[1]),
    ]
    return _chart("Lateness", series, run, _ms)


def _lateness(run: MigrationRun) -> ReportTable:
    rows = [[name, *_lateness_row(samples)] for name, samples in phases(run).items()]
    names = "Time|#Deliveries|#p50, typical|#p99, typical|#p99, highest|#Latest"
    return ReportTable.of_columns(names, rows)


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
        (event.at_ms, clean_text(f"{event.kind} {event.text}"))
        for event in run.events
        if event.kind not in STEP_KINDS
    ]
    band = ("the run", *span_of(run))
    return chart(title, series, shown=shown, band=band, annotations=events, may_be_log=True)


def _verifications(run: MigrationRun) -> ReportTable:
    from markupsafe import Markup

    count = Markup("{}<br/><code>{:016x}</code>")
    state = Markup('<span class="state {}">{}</span>')
    rows = [
        [
            _when(item.at_ms),
            f"{item.level}",
            state.format("good", "agrees") if item.agrees else state.format("bad", "differs"),
            count.format(_count(item.levels_count), item.levels_checksum),
            count.format(_count(item.timers_count), item.timers_checksum),
            _words(item.text),
        ]
        for item in run.verifications
    ]
    return ReportTable.of_columns("Time|Level|Result|#Level messages|#Timers|Remark", rows)


def _plan(run: MigrationRun) -> ReportTable:
    rows = [
        [
            f"{level.level}",
            duration(level.delay_ms),
            _count(level.pending),
            binary_size(level.pending_bytes),
            NOTHING if level.first_due_ms is None else _time_text(level.first_due_ms),
            NOTHING if level.last_due_ms is None else _time_text(level.last_due_ms),
            _count(level.overdue),
            duration(level.estimate_ms),
        ]
        for level in (run.plan.levels if run.plan else ())
    ]
    names = "Level|#Delay|#Pending|#Bytes|#First due|#Last due|#Overdue|#Estimate"
    return ReportTable.of_columns(names, rows)


def _event_table(events: Iterable[EventRecord]) -> ReportTable:
    rows = [
        [
            _when(event.at_ms),
            NOTHING if event.level is None else f"{event.level}",
            event.kind,
            _words(event.operator),
            _words(event.text),
        ]
        for event in events
    ]
    return ReportTable.of_columns("Time|Level|Event|Operator|Remark", rows)


def _words(text: str) -> str:
    from markupsafe import Markup

    return Markup('<span class="words">{}</span>').format(clean_text(text))


def _when(at_ms: int) -> str:
    from markupsafe import Markup

    return Markup('<span class="when">{}</span>').format(_time_text(at_ms))


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


def _ms(ms: float) -> str:
    return f"{ms:,.0f} ms" if ms < 10_000 else duration(ms)
