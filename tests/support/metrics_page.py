"""Metrics reference page, generated from the collectors of a temporary broker."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from prometheus_client.core import Metric

from duemq.broker.broker import Broker
from duemq.broker.collectors.native_metrics import PREFIX
from duemq.broker.collectors.native_registry import STORAGE_LABELS

SECTIONS: Final = (
    ("duemq_level_", "Levels"),
    ("duemq_timer_", "Timers"),
    ("duemq_migration_", "Migrations"),
    ("duemq_audit_", "Audits"),
    ("duemq_", "Broker"),
    (PREFIX, "Apache's series"),
)
"""Name prefix and title of each section; the first match counts."""
INTRODUCTION: Final = (
    "`http://HOST:5557/metrics` (`metricsPromExporterPort`) serves these metrics, in the text",
    "format of Prometheus or as OpenMetrics. A counter has the suffix `_total` there. A histogram",
    "has the series `_bucket`, `_count` and `_sum`. A metric has no series before it has a value.",
)
APACHE: Final = (
    "Names and labels are those of RocketMQ 5.3.3's Prometheus exporter;",
    "[Compatibility](../compat.md) gives the differences. Every series has the labels `cluster`,",
    "`node_id` and `node_type` as well; those of the store also have",
    f"{' and '.join(f'`{name}`' for name in STORAGE_LABELS)}.",
)


def metrics_page(generated: str) -> str:
    """Return docs/reference/metrics.md.

    Args:
        generated: The comment of generated pages.
    """
    lines = ["# Metrics", "", generated, "", *INTRODUCTION, ""]
    left = {family.name: family for family in asyncio.run(_families())}
    tables = {}
    for prefix, title in SECTIONS:
        names = [name for name in left if name.startswith(prefix)]
        tables[title] = _table(left.pop(name) for name in names)
    for title in ("Broker", "Levels", "Timers", "Migrations", "Audits"):
        lines += [f"## {title}", "", *tables[title], ""]
    lines += ["## Apache's series", "", *APACHE, "", *tables["Apache's series"]]
    return "\n".join(lines) + "\n"


def _table(families: Iterable[Metric]) -> list[str]:
    return [
        "| metric | type | labels | meaning |",
        "|---|---|---|---|",
        *sorted(map(_row, families)),
    ]


def _row(family: Metric) -> str:
    suffix = "_total" if family.type == "counter" else ""
    labels = ", ".join(f"`{name}`" for name in _labels(family))
    meaning = family.documentation.replace("|", "\\|")
    return f"| `{family.name}{suffix}` | {family.type} | {labels} | {meaning} |"


def _labels(family: Metric) -> list[str]:
    """Return the label names of a family; prometheus-client has no public attribute for them."""
    declared: Any = getattr(family, "_labelnames", ())
    return list(declared)


async def _families() -> list[Metric]:
    """Return the metric families of a broker with the built-in plugins."""
    with TemporaryDirectory() as directory:
        properties = {
            "storePathRootDir": str(Path(directory) / "store"),
            "brokerIP1": "127.0.0.1",
            "bindAddress": "127.0.0.1",
            "listenPort": "0",
            "metricsPromExporterPort": "0",
        }
        async with Broker(properties) as broker:
            return await asyncio.to_thread(lambda: list(broker.metrics.collect()))
