"""Metric families with one label, in prometheus-client's form."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from delayed_delivery.outcome import Lateness

Values = Iterable[tuple[object, float]]
"""Pairs of label and value."""


def gauge(name: str, text: str, label: str, values: Values) -> GaugeMetricFamily:
    """Return a gauge with a value for each label."""
    family = GaugeMetricFamily(name, text, labels=[label])
    for key, value in values:
        family.add_metric([str(key)], value)
    return family


def counter(name: str, text: str, label: str, values: Values) -> CounterMetricFamily:
    """Return a counter with a value for each label."""
    family = CounterMetricFamily(name, text, labels=[label])
    for key, value in values:
        family.add_metric([str(key)], value)
    return family


def lateness(
    name: str, label: str, values: Iterable[tuple[object, Lateness]]
) -> HistogramMetricFamily:
    """Return the histograms of lateness, one for each label."""
    text = "Store time of a delivery minus its due time."
    family = HistogramMetricFamily(name, text, labels=[label])
    for key, late in values:
        family.add_metric([str(key)], late.seconds_buckets(), late.sum_ms / 1_000)
    return family
