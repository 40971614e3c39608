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
        together: Consecutive messages of a producer with the same queue and level.
        levels: Number of levels, from level 1 on.
        rates: Rate of each window, in place of `rate` and `seconds`; empty: none.
    """

    topics: int
    groups: int
    connections: int
    producers: int
    rate: int
    skew: float
    seconds: int
    window_s: int
    together: int = 1
    levels: int = 5
    rates: tuple[int, ...] = ()
