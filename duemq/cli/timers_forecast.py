"""`duemq timers forecast`: bar chart of pending timers by due time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from duemq.cli.messages import table_time
from duemq.cli.options import Target
from duemq.cli.output import console, heading, plural, print_json, table
from duemq.cli.times import parse_time
from duemq.net.view_names import TIMERS_FORECAST_VIEW
from duemq_common.clock import SystemClock
from duemq_common.errors import UsageError

if TYPE_CHECKING:
    from duemq.client.admin import Admin

UNITS = {"minute": (60_000, 60), "hour": (3_600_000, 48), "day": (86_400_000, 31)}
COUNT_MAX = 10_000
BAR_COLUMNS = 60
BESIDE_BAR_COLUMNS = 34  # time, count of up to 10 digits with commas, margins
EIGHTHS = " ▏▎▍▌▋▊▉"
COLUMNS = ("up to (UTC)", "#timers", "")


def show_forecast(target: Target, *, by: str, count: int, from_time: str) -> None:
    """Print the forecast, summed over all brokers."""
    if by not in UNITS:
        raise UsageError(f"--by {by}: must be {', '.join(UNITS)}")
    width_ms, usual = UNITS[by]
    if count > COUNT_MAX:
        raise UsageError(f"--count {count}: at most {COUNT_MAX}")
    now_ms = SystemClock().now_ms()
    from_ms = parse_time(from_time, now_ms) if from_time else now_ms
    arguments = {
        "from_ms": from_ms - from_ms % width_ms,
        "width_ms": width_ms,
        "count": count or usual,
    }
    forecast = target.ask(lambda admin: _fetch(admin, arguments))
    if target.as_json:
        print_json(forecast)
    else:
        print_forecast(forecast)


async def _fetch(admin: Admin, arguments: dict[str, int]) -> dict[str, object]:
    """Return the sum over all brokers; a broker may respond in several pieces."""
    counts, sums = [0] * arguments["count"], {"before": 0, "later": 0, "pending": 0}
    for broker in await admin.masters():
        view = await admin.view(broker.address, TIMERS_FORECAST_VIEW, **arguments)
        sums["pending"] += view["pending"]
        while True:
            counts = [a + b for a, b in zip(counts, view["counts"], strict=True)]
            sums["before"] += view["before"]
            sums["later"] += view["later"]
            if view["pos"] is None:
                break
            view = await admin.view(
                broker.address, TIMERS_FORECAST_VIEW, **arguments, pos=view["pos"]
            )
    return {**arguments, **sums, "counts": counts}


def print_forecast(forecast: dict[str, Any]) -> None:
    """Print a forecast as bars that fit the width of the terminal."""
    out = console()
    most = max(forecast["counts"])
    columns = max(min(out.width - BESIDE_BAR_COLUMNS, BAR_COLUMNS), 1)
    rows: list[tuple[str, str, str]] = []
    if forecast["before"]:
        rows.append((table_time(forecast["from_ms"])[:16], f"{forecast['before']:,}", "(before)"))
    empty = 0
    for number, count in enumerate(forecast["counts"]):
        empty = 0 if count else empty + 1
        if empty == 2:
            rows.append(("...", "", ""))
        if empty < 2:
            end_ms = forecast["from_ms"] + (number + 1) * forecast["width_ms"]
            rows.append((table_time(end_ms)[:16], f"{count:,}", bar(count, most, columns)))
    rows.append(("later", f"{forecast['later']:,}", ""))
    pending = forecast["pending"]
    out.print(heading(f"{pending:,} {plural(pending, 'timer')} pending"))
    out.print(table("", COLUMNS, rows))


def bar(count: int, most: int, columns: int) -> str:
    """Return a bar of at most `columns` characters, proportional to the largest count."""
    if not count:
        return ""
    eighths = max(count * columns * 8 // most, 1)
    return ("█" * (eighths // 8) + EIGHTHS[eighths % 8]).rstrip()
