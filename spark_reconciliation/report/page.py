"""HTML report of an audit, self-contained. A pure function of its rows; see `report.html`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from duemq_common.charts import COLOURS, Series, chart, count_bar, time_text
from duemq_common.report_page import NUMBER, ReportTable, render_report
from spark_reconciliation.audit.outside_proof import ACCEPTABLE, CONSUMED
from spark_reconciliation.audit.rules import CLEAN
from spark_reconciliation.audit.summary import Summary

if TYPE_CHECKING:
    from spark_reconciliation.jobs.outside import ProofSummary

Rows = Sequence[Mapping[str, Any]]
TEMPLATE: Final = Path(__file__).with_name("report.html")
ROWS_MAX: Final = 200
MINUTE_MS: Final = 60_000
TIMES: Final = frozenset(
    {
        "due_ms",
        "delivered_ms",
        "from_ms",
        "until_ms",
        "peak_at_ms",
        "promised_ms",
        "accepted_ms",
        "received_ms",
        "store_ms",
        "first_due_ms",
        "last_due_ms",
    }
)
NO_NUMBERS: Final = TIMES | {"level"}
WORDS: Final = frozenset({"why", "note", "store", "file"})
GOOD: Final = frozenset({"ok", "moved", CONSUMED})  # pending and cancelled messages are neutral
PROOF_TITLES: Final = {
    "sent": "Compared with the producer's table",
    "received": "Compared with the consumer's table",
}
LIKE_MAX: Final = 3  # maximum shown rows of a group; the others are merged


@dataclass(frozen=True, slots=True, kw_only=True)
class Pages:
    """Rows of the jobs that a report shows below the summary, in order."""

    totals: Rows = ()
    lateness: Rows = ()
    trend: Rows = ()
    worst: Rows = ()
    forecast: Rows = ()  # result of `jobs.capacity`
    days: Rows = ()
    proof: Rows = ()


def html_report(
    summary: Summary, *, stores: Sequence[str], pages: Pages | None = None, at_ms: int
) -> str:
    """Return the page.

    Args:
        at_ms: Time of the audit, in ms since the epoch.
    """
    functions = (
        clock_text,
        time_text,
        _forecast_chart,
        _grouped,
        _lateness_chart,
        _table,
        _verdict_table,
        _outcome_table,
        _divergences,
    )
    return render_report(
        TEMPLATE,
        summary=summary,
        stores=stores,
        pages=pages or Pages(),
        at_ms=at_ms,
        rows_max=ROWS_MAX,
        figures=_figures(summary),
        proof_titles=PROOF_TITLES,
        **{f"{one.__name__.lstrip('_')}_of": one for one in functions},
    )


def _figures(summary: Summary) -> list[tuple[str, str, str]]:
    """Return name, value and CSS class of each figure at the top of the page."""
    late = ((f"late by, {name}, ms", ms, "") for name, ms in summary.lateness_ms.items())
    figures = [
        ("messages", summary.messages, ""),
        ("findings", summary.findings, "bad" if summary.findings else "good"),
        ("pending", summary.verdicts.get("pending", 0), ""),
        *((name, ms, kind) for name, ms, kind in late if ms is not None),
    ]
    return [(name, f"{number:,}", kind) for name, number, kind in figures]


def _verdict_table(summary: Summary) -> ReportTable:
    """Return the counts of the verdicts, with bars on a log scale."""
    return _count_table("verdict", "messages", summary.verdicts, CLEAN)


def _outcome_table(proof: ProofSummary) -> ReportTable:
    """Return the counts of the outcomes of a comparison with a table."""
    return _count_table("outcome", "names", proof.outcomes, ACCEPTABLE)


def _divergences(summary: Summary) -> Rows:
    """Return the first records that differ between the stores of a group."""
    rows = (row for group in summary.groups for row in group.examples)
    return [asdict(row) | {"have": ", ".join(row.have)} for row in rows]


def _count_table(
    title: str, unit: str, counts: Mapping[str, int], clean: frozenset[str]
) -> ReportTable:
    from markupsafe import Markup

    largest, total = max(counts.values(), default=0), sum(counts.values())
    state = Markup('<span class="state {}">{}</span>')
    rows = [
        [
            (state.format(_verdict_kind(name, clean), name), ""),
            (f"{count:,}", NUMBER),
            (share_text(count, total), NUMBER),
            (Markup(count_bar(count, largest)), ""),
        ]
        for name, count in counts.items()
    ]
    columns = [(title, ""), (unit, NUMBER), ("share", NUMBER), ("log scale", "")]
    return ReportTable(columns, rows)


def _table(names: Sequence[str], rows: Rows) -> ReportTable:
    """Return the first rows as a table."""
    columns = [(_title_of(name), NUMBER if _is_number(name, rows) else "") for name in names]
    cells = [
        [(shown_cell(name, row.get(name)), _kind_of(name, row.get(name))) for name in names]
        for row in rows[:ROWS_MAX]
    ]
    return ReportTable(columns, cells)


def _verdict_kind(name: str, clean: frozenset[str]) -> str:
    return "good" if name in GOOD else "" if name in clean else "bad"


def _lateness_chart(rows: Rows) -> tuple[str, int]:
    """Return the chart of the heaviest series, and the number of series that are not drawn."""
    series: dict[str, dict[int, float]] = {}
    weight: dict[str, int] = {}
    for row in rows:
        level = row.get("level")
        name = f"{'timers' if level is None else f'level {level}'}, {row['topic']}"
        series.setdefault(name, {})[row["from_ms"]] = row["p99_ms"]
        weight[name] = weight.get(name, 0) + row["messages"]
    order = sorted(series, key=lambda name: (-weight[name], name))
    drawn = [
        Series(name, sorted(series[name].items()), colour)
        for name, colour in zip(order, COLOURS, strict=False)
    ]
    return chart("Lateness", drawn, shown="{:,.0f} ms".format, may_be_log=True), len(order) - len(
        drawn
    )


def _forecast_chart(rows: Rows) -> tuple[str, str]:
    """Return the chart of due messages, and its explanation."""
    load = {row["from_ms"]: row["per_second"] for row in rows}
    limit = rows[0].get("capacity_per_s")
    piece_ms = min(row["until_ms"] - row["from_ms"] for row in rows)
    series = Series("messages per second", sorted(load.items()), bar_ms=piece_ms)
    drawn = chart(
        "Forecast",
        [series],
        shown="{:,.2f}/s".format,
        limit=limit,
        step_min=0.01,
        may_be_log=True,
    )
    worst = max(row.get("behind_ms") or 0 for row in rows)
    text = f"Dashed: {limit:,.2f} per second" if limit is not None else "Pending"
    late = f"; the last message of the heaviest time would be {worst:,} ms late"
    return drawn, f"{text}{late}. A bar is {_length(piece_ms)} wide."


def _length(ms: int) -> str:
    if ms == MINUTE_MS:
        return "a minute"
    return f"{ms // MINUTE_MS:,} minutes" if ms % MINUTE_MS == 0 else f"{ms:,} ms"


def share_text(count: int, total: int) -> str:
    """Return a share in percent; a count above 0 is never 0 %, and not all is never 100 %."""
    if not 0 < count < total:
        return "100 %" if count else "0 %"
    shown = min(max(100 * count / total, 0.01), 99.99)
    less = "< " if 100 * count / total < 0.01 else ""
    return f"{less}{shown:.2f} %"


def clock_text(summary: Summary) -> str:
    """Return the explanation of clock steps in an audit."""
    if summary.excused:
        return (
            f"{summary.excused:,} messages were delivered early, skipped or overdue only because "
            "the clock was set back. They are findings unless --trust-clock is given."
        )
    return "No finding depends on it. Lateness and overdue messages are by this clock."


def _grouped(
    names: Sequence[str], rows: Rows, same: Sequence[str]
) -> tuple[Sequence[str], list[Mapping[str, object]], list[Mapping[str, object]]]:
    """Return the columns to show, the first rows of each group, and the other rows.

    Args:
        same: Columns in which the rows of a group agree.
    """
    if len({row.get("store") for row in rows}) == 1:  # the heading has the store
        names = [name for name in names if name != "store"]
    seen: dict[tuple[object, ...], int] = {}
    first: list[Mapping[str, object]] = []
    rest: list[Mapping[str, object]] = []
    for row in rows:
        key = tuple(row.get(name) for name in same)
        seen[key] = seen.get(key, 0) + 1
        (first if seen[key] <= LIKE_MAX else rest).append(row)
    return names, first, rest


def shown_cell(name: str, value: object) -> str:
    """Return a value of a column as text: times, levels, numbers."""
    if value is None:
        return "timer" if name == "level" else ""
    if name in TIMES and isinstance(value, int):
        return time_text(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"


def _title_of(name: str) -> str:
    return name.removesuffix("_ms").replace("_", " ")


def _is_number(name: str, rows: Rows) -> bool:
    """Return whether the heading of a column is right-aligned, above numbers."""
    values = (row.get(name) for row in rows[:ROWS_MAX])
    return name == "messages" or any(_kind_of(name, value) == NUMBER for value in values)


def _kind_of(name: str, value: object) -> str:
    """Return the CSS class of a cell."""
    if name in TIMES:
        return "when"
    if isinstance(value, int | float) and name not in NO_NUMBERS:
        return NUMBER
    return "id" if name == "unique_id" else "words" if name in WORDS else ""
