"""Sizes of a measurement."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Sizes of a measurement.

    Attributes:
        connections: Connections of producers and consumers.
        producers: Connections that send.
        rate: Level messages per second.
        skew: Exponent of the messages per topic: topic k gets k^-skew; 0: all the same.
        window_s: Seconds between two samples.
    """

    topics: int
    groups: int
    connections: int
    producers: int
    rate: int
    skew: float
    seconds: int
    window_s: int
