"""`duemq timers` and `duemq timers follow`: summary of pending timers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from duemq.cli.messages import table_time
from duemq.cli.options import Target
from duemq.cli.output import console, fitted, heading, plural, print_json, refreshing, table
from duemq.cli.retrying import watch
from duemq.cli.times import duration_text
from duemq.net.view_names import TIMERS_LIST_VIEW, TIMERS_VIEW
from duemq_common.text import binary_size

if TYPE_CHECKING:
    from duemq.client.admin import Admin
    from duemq.client.admin.cluster import BrokerMember

View = dict[str, Any]  # JSON of a view
FOLLOW_INTERVAL_S = 1.0
NEXT_SHOWN = 10
TOPICS_SHOWN = 20
HOUR_COLUMNS_MIN = 110  # terminal width for 60 bars and their label
SPARKS = " ▁▂▃▄▅▆▇█"
LIST_COLUMNS = (
    "due (UTC)",
    "#due in",
    "topic",
    "#queue",
    "keys",
    "unique key",
    "#bytes",
    "#log offset",
)
LIST_OPTIONAL = ("#bytes", "#log offset", "#queue", "#due in")


def show_summary(target: Target) -> None:
    """Print the timers of every broker."""

    async def fetch(admin: Admin) -> list[View]:
        return await _fetch(admin, await admin.masters())

    views = target.ask(fetch)
    if target.as_json:
        print_json(views)
        return
    for view in views:
        console().print(summary_of(view))


def follow_timers(target: Target, *, count: int) -> None:
    """Print the summary and the next due timers `count` times, 0: until interrupted."""

    def shown(views: list[View]) -> object:
        if target.as_json:
            return views
        return _grouped([part for view in views for part in _following(view)])

    async def follow(admin: Admin) -> None:
        brokers = await admin.masters()
        with refreshing(as_json=target.as_json) as show:
            await watch(
                ", ".join(broker.address for broker in brokers),
                lambda: _fetch(admin, brokers, following=True),
                lambda views: show(shown(views)),
                interval_s=FOLLOW_INTERVAL_S,
                count=count,
            )

    target.ask(follow)


async def _fetch(
    admin: Admin, brokers: list[BrokerMember], *, following: bool = False
) -> list[View]:
    views = []
    for broker in brokers:
        view = {"broker": broker.name, "address": broker.address}
        view |= await admin.view(broker.address, TIMERS_VIEW)
        if following:
            page = await admin.view(broker.address, TIMERS_LIST_VIEW, limit=NEXT_SHOWN)
            view["next"] = page["timers"]
        views.append(view)
    return views


def _grouped(parts: list[Any]) -> object:
    from rich.console import Group

    return Group(*parts)


def _following(view: View) -> list[object]:
    rows = [list_row(timer, view["now_ms"]) for timer in view["next"]]
    return [summary_of(view), heading("next"), timers_table(rows)]


def timers_table(rows: list[tuple[object, ...]]) -> object:
    """Return a table of timers."""
    return fitted(LIST_COLUMNS, rows, optional=LIST_OPTIONAL, width=console().width)


def list_row(timer: View, now_ms: int) -> tuple[object, ...]:
    """Return the cells of LIST_COLUMNS for a timer."""
    due_ms = timer["due_ms"]
    if "unreadable" in timer:
        return (
            table_time(due_ms),
            "",
            timer["unreadable"],
            "",
            "",
            "",
            "",
            timer["commit_log_offset"],
        )
    return (
        table_time(due_ms),
        duration_text(max(due_ms - now_ms, 0)) if due_ms is not None else "",
        timer["topic"] or "",
        timer["queue_id"],
        timer["keys"],
        timer["unique_key"],
        f"{timer['body_bytes']:,}",
        timer["commit_log_offset"],
    )


# -- the summary --------------------------------------------------------------------------------


def summary_of(view: View) -> object:
    """Return the lines for one broker's summary."""
    topics = sorted(view["topics"].items(), key=lambda item: (-item[1], item[0]))
    rows = [(name or "(unknown topic)", f"{count:,}") for name, count in topics[:TOPICS_SHOWN]]
    if len(topics) > TOPICS_SHOWN:
        left = sum(count for _, count in topics[TOPICS_SHOWN:])
        rows.append((f"... {len(topics) - TOPICS_SHOWN} more", f"{left:,}"))
    title = f"{view['broker']}: {view['pending']:,} {plural(view['pending'], 'timer')} pending"
    facts = table("", ("", ""), _facts(view))
    facts.show_header = False
    return _grouped([heading(title), table("", ("topic", "#pending"), rows), facts])


def _facts(view: View) -> list[tuple[str, str]]:
    now_ms, due_ms = view["now_ms"], view["next_due_ms"]
    facts = [
        ("next due", f"{table_time(due_ms)} (in {duration_text(max(due_ms - now_ms, 0))})")
        if due_ms is not None
        else ("next due", "-"),
        _next_hour(view["per_minute"]["counts"]),
        ("enqueued/s (1, 10, 60 s)", _rates(view, "enqueue")),
        ("delivered/s (1, 10, 60 s)", _rates(view, "dequeue")),
        ("lag: enqueue, delivery", f"{_lag(view['enqueue'])}, {_lag(view['dequeue'])}"),
    ]
    for name, late in view["lateness_ms"].items():
        if late["max"] is not None:
            text = f"p50 {late['p50']}, p99 {late['p99']}, p99.9 {late['p999']}, max {late['max']}"
            facts.append((f"late ms, {name} topics", text))
    facts.append(("since the start", _counts(view)))
    facts.append(("slots", _slots(view["slots"])))
    if view["compaction"]["copied"] or view["compaction"]["running"]:
        facts.append(("copied out of old log files", _compaction(view["compaction"])))
    return facts + _problems(view)


def _rates(view: View, stage: str) -> str:
    rates = view[stage]["per_second"].values()
    return ", ".join(f"{rate:,.1f}" if 0 < rate < 10 else f"{rate:,.0f}" for rate in rates)


def _lag(stage: View) -> str:
    units = stage["lag_units"]
    return f"{units:,} ({duration_text(stage['lag_ms'])})" if units else "0"


def _counts(view: View) -> str:
    names = ("delivered", "rolled", "cancelled", "moved", "fired", "lost", "broken")
    texts = [f"{view[name]:,} {name}" for name in names if view[name] or name == "delivered"]
    quarantined = sum(view["quarantined"].values())
    return ", ".join([*texts, *([f"{quarantined:,} quarantined"] if quarantined else [])])


def _slots(slots: View) -> str:
    texts = f"{slots['used']:,} used"
    if slots["fullest"]:
        first = slots["fullest"][0]
        texts += f"; fullest {first['count']:,} at {table_time(first['from_ms'])}"
    return texts + (f"; {slots['congested']:,} full" if slots["congested"] else "")


def _compaction(view: View) -> str:
    texts = f"{view['copied']:,} copied ({binary_size(view['copied_bytes'])}), "
    texts += f"{binary_size(view['freed_bytes'])} of the log freed"
    done, whole = view["progress"]
    return texts + (f"; running, {done:,} of {whole:,} read" if view["running"] else "")


def _problems(view: View) -> list[tuple[str, str]]:
    enqueue, dequeue = view["enqueue"], view["dequeue"]
    texts = [
        ("enqueue is blocked", enqueue["blocked_by"]),
        ("delivery is blocked", dequeue["refusal"]),
        ("old log files are kept", view["compaction"]["why"]),
        ("timerStopEnqueue", "no timer is enqueued" if enqueue["stopped"] else ""),
        ("timerStopDequeue", "nothing is delivered" if dequeue["stopped"] else ""),
    ]
    return [(name, reason) for name, reason in texts if reason]


def _next_hour(counts: list[int]) -> tuple[str, str]:
    """Return the label and bars of the next hour, per minute or, if too wide, per two minutes."""
    if console().width >= HOUR_COLUMNS_MIN:
        return "next hour, by minute", sparks(counts)
    pairs = [sum(counts[index : index + 2]) for index in range(0, len(counts), 2)]
    return "next hour, by 2 minutes", sparks(pairs)


def sparks(counts: list[int]) -> str:
    """Return counts as a sparkline."""
    most = max(counts, default=0)
    if not most:
        return "(none)"
    steps = len(SPARKS) - 1
    bars = "".join(SPARKS[-(-count * steps // most)] for count in counts)
    return f"{bars} (at most {most:,})"
