"""Parts of pages that brokers report: notices of unknown ones, sums."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from duemq.console.blocks import Key, Notice
from duemq.http.broker_states import BrokerState, UnknownPart, unknown_of
from duemq.http.endpoints import JsonValue


def unknown_parts(states: Iterable[BrokerState]) -> list[Notice]:
    """Return a notice for each broker whose part of a page is unknown."""
    return notices_of(unknown_of(states))


def notices_of(parts: Iterable[UnknownPart]) -> list[Notice]:
    """Return a notice for each unknown part."""
    return [
        Notice(Key("value.unknown_part"), f"{part.broker}: {part.reason}", "bad") for part in parts
    ]


def total(states: Sequence[BrokerState], *path: str) -> int | None:
    """Return the sum of a number in the values; None if it is unknown for any broker."""
    numbers = [number_in(state.value, *path) for state in states]
    return None if None in numbers or not numbers else sum(n for n in numbers if n is not None)


def number_in(value: JsonValue, *path: str) -> JsonValue:
    """Return a number in nested plain data; None if it is unknown."""
    for name in path:
        if not isinstance(value, dict):
            return None
        value = value.get(name)
    return value if isinstance(value, int | float) else None
