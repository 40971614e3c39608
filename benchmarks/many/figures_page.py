"""Generator of docs/reference/many-at-once.md and its charts from a file of figures.

A test checks that the page and the charts agree with the file that the page links to.
"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.page import named, number, read, replaced
from duemq_common.charts import LEFT, WIDTH, Series, chart

TOP = Path(__file__).parents[2]
PAGE = TOP / "docs" / "reference" / "many-at-once.md"
CHARTS = TOP / "docs" / "figures"
STYLE = (
    "<style>text{font:11px sans-serif;fill:#555}.grid{stroke:#ddd}.line{fill:none;stroke-width:1.5}"
    ".hit{fill:none}svg{background:#fff}</style>"
)
PERCENTILES = {"p50": "#1f6f8b", "p99": "#6a8f3c", "p999": "#c58a1c", "max": "#c0504d"}
LINES = {
    "many-memory.svg": ("memory of the broker, MB", ("resident_mb", "anonymous_mb")),
    "many-descriptors.svg": ("descriptors of the broker", ("descriptors",)),
    "many-pauses.svg": (
        "longest pause in a minute, at most ms",
        ("longest_turn_ms", "longest_gc_ms", "longest_full_gc_ms"),
    ),
    "many-cores.svg": ("cores in use", ("broker_cores", "load_cores")),
}
COLOURS = ("#8064a2", "#1f6f8b", "#c0504d")
NAMES = {
    "p999": "p99.9",
    "resident_mb": "resident memory, MB",
    "anonymous_mb": "anonymous memory, MB",
    "longest_turn_ms": "turn of the event loop",
    "longest_gc_ms": "collection of recent objects",
    "longest_full_gc_ms": "collection of all objects",
    "broker_cores": "broker",
    "load_cores": "clients",
}
Results = dict[str, Any]


def write(figures: Path, page: Path = PAGE, charts: Path = CHARTS) -> None:
    """Write the generated part of the page, and the charts."""
    page.write_text(filled(page.read_text(), figures.name, json.loads(figures.read_text())))
    for name, svg in drawn(json.loads(figures.read_text())).items():
        (charts / name).write_text(svg)


def current() -> tuple[str, Results]:
    """Return the name and the content of the file that the page links to."""
    name = named(PAGE.read_text())
    return name, read(name)


def drawn(results: Results) -> dict[str, str]:
    """Return the charts, by file name."""
    windows = results["windows"]
    return {
        "many-lateness.svg": _svg(
            "lateness at the store, ms",
            [
                Series(NAMES.get(key, key), _points(windows, "late_at_store_ms", key), colour)
                for key, colour in PERCENTILES.items()
            ],
        ),
    } | {
        name: _svg(
            title,
            [
                Series(
                    NAMES.get(key, key),
                    [(row["end_ms"], float(row[key])) for row in windows],
                    colour,
                )
                for key, colour in zip(keys, COLOURS, strict=False)
            ],
        )
        for name, (title, keys) in LINES.items()
    }


def _points(windows: list[Results], name: str, key: str) -> list[tuple[int, float | None]]:
    return [(row["end_ms"], float(row[name][key])) for row in windows]


def _svg(title: str, series: list[Series]) -> str:
    """Return a chart as a file of its own: with its style and its legend."""
    text = chart(title, series, shown=number, may_be_log=True)
    legend = "".join(
        f'<text x="{LEFT + 190 * index}" y="10" style="fill:{each.colour}">{each.name}</text>'
        for index, each in enumerate(series)
    )
    svg = text[text.rindex(f'<svg viewBox="0 0 {WIDTH} ') :]
    opening, _, content = svg.partition(">")
    return f"{opening}>\n{STYLE}{legend}{content}\n"


def filled(page: str, name: str, results: Results) -> str:
    """Return the page with the figures between its markers."""
    parts = [_source(name, results), _totals(results)]
    if "rates" in results:
        parts.append(_rates(results["rates"]))
    return replaced(page, [*parts, _minutes(results), _slopes(results)])


def _source(name: str, results: Results) -> str:
    about = results["machine"]
    return (
        f"[Figures](../../benchmarks/results/{name}) of `{results['command']}` at commit "
        f"{about['commit']}: {about['cores']} cores of {about['cpu']}, {about['memory']}; other "
        f"programs used {results['shared']['work of others, cores']} cores."
    )


def _totals(results: Results) -> str:
    sizes, final, windows = results["sizes"], results["final"], full(results)
    late = [row["late_at_store_ms"] for row in windows]
    rows = {
        "topics, groups, connections": " / ".join(
            number(sizes[name]) for name in ("topics", "groups", "connections")
        ),
        "queues pulled, a long poll each": number(results["connected"]["queues"]),
        "required, messages/s": number(sizes["rate"]),
        "accepted, messages/s (median of the minutes)": _median(windows, "accepted"),
        "received, messages/s (median of the minutes)": _median(windows, "received"),
        "sent, accepted, received": " / ".join(
            number(final[name]) for name in ("sent", "accepted", "received")
        ),
        "lost / doubled / early / damaged": " / ".join(
            number(final[name]) for name in ("lost", "duplicates", "early", "corrupt")
        ),
        "late at the store, worst minute: p50 / p99 / p99.9 / max, ms": " / ".join(
            number(max((each[key] for each in late), default=0)) for key in PERCENTILES
        ),
        "late after the due time, worst minute: p50 / p99 / p99.9 / max, ms": " / ".join(
            number(max(row["late_after_due_ms"][key] for row in windows)) for key in PERCENTILES
        ),
        "anonymous memory of the broker, MB: connected / end": " / ".join(
            number(each["anonymous_mb"]) for each in (results["connected"]["broker"], windows[-1])
        ),
        "of it in huge pages at the end, MB": number(windows[-1]["huge_mb"]),
        "descriptors / threads": f"{windows[-1]['descriptors']:,} / {windows[-1]['threads']}",
        "cores: broker / load": " / ".join(
            number(median(row[name] for row in windows)) for name in ("broker_cores", "load_cores")
        ),
        "longest turn of the event loop, at most ms": number(
            max(row["longest_turn_ms"] for row in windows)
        ),
        "garbage collection: share of time / longest, at most ms": (
            f"{100 * median(row['gc_share'] for row in windows):.1f} % / "
            + number(max(row["longest_full_gc_ms"] for row in windows))
        ),
        "a scrape of /metrics, s / MB": (
            f"{number(windows[-1]['scrape_s'])} / {number(windows[-1]['scrape_bytes'] / 1e6)}"
        ),
    }
    return "\n".join(
        ["| figure | value |", "|---|---|", *(f"| {k} | {v} |" for k, v in rows.items())]
    )


def _rates(rates: Results) -> str:
    """Return the rows of the searches for the highest rate."""
    limit = f"{number(rates['late_ms_max'])} ms"
    lines = [
        f"The rate doubled every {rates['step_s']} s until p99 of the lateness exceeded {limit}:",
        "",
        "| messages together | required/s | in/s | out/s | late p50 | p99 | max ms | "
        "cores of broker | of load | broker's us per message |",
        "|---" * 10 + "|",
    ]
    for together, result in rates["by_together"].items():
        for row in result["windows"]:
            late, passed = row["late_at_store_ms"], max(row["received"], 1)
            cells = [
                row["rate"],
                row["accepted"] / row["seconds"],
                row["received"] / row["seconds"],
                late["p50"],
                late["p99"],
                late["max"],
                row["broker_cores"],
                row["load_cores"],
                1e6 * row["broker_cores"] * row["seconds"] / passed,
            ]
            lines.append(f"| {together} | " + " | ".join(map(number, cells)) + " |")
    best = {
        together: max((row["rate"] for row in result["windows"] if row["on_time"]), default=0)
        for together, result in rates["by_together"].items()
    }
    faults = sum(
        result["final"][name]
        for result in rates["by_together"].values()
        for name in ("lost", "duplicates", "early", "corrupt")
    )
    highest = ", ".join(f"{number(rate)}/s with {together}" for together, rate in best.items())
    return "\n".join([*lines, "", f"Highest rate on time: {highest}. Faults: {faults}."])


def full(results: Results) -> list[Results]:
    """Return the windows in which messages were sent all the time; all, if there are none."""
    length = results["sizes"]["window_s"]
    windows: list[Results] = results["windows"]
    return [row for row in windows if row["sent"] and row["seconds"] < 1.5 * length] or windows


def _median(windows: list[Results], name: str) -> str:
    return number(median(row[name] / row["seconds"] for row in windows))


def _minutes(results: Results) -> str:
    lines = [
        "| minute | in/s | out/s | late p50 | p99 | p99.9 | max ms | after due p99 ms | at the "
        "consumer p99 ms | anonymous MB | descriptors | cores of broker | of load | "
        "longest turn ms | gc % |",
        "|---" * 15 + "|",
    ]
    for index, row in enumerate(results["windows"], 1):
        late = row["late_at_store_ms"]
        cells = [
            row["accepted"] / row["seconds"],
            row["received"] / row["seconds"],
            *(late[key] for key in PERCENTILES),
            row["late_after_due_ms"]["p99"],
            row["late_at_client_ms"]["p99"],
            row["anonymous_mb"],
            row["descriptors"],
            row["broker_cores"],
            row["load_cores"],
            row["longest_turn_ms"],
            100 * row["gc_share"],
        ]
        lines.append(f"| {index} | " + " | ".join(number(cell) for cell in cells) + " |")
    return "\n".join(lines)


def _slopes(results: Results) -> str:
    lines = ["| per piece | figure |", "|---|---|"]
    lines += [f"| {name} | {number(value)} |" for name, value in results["slopes"].items()]
    return "\n".join(lines)
