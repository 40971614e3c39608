"""The member `offsetTable` of consumerOffset.json: `{"topic@group": {queue: offset}}`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

SEPARATOR: Final = "@"
Table = dict[tuple[str, str], dict[int, int]]


def read_table(data: object) -> Table:
    """Decode `{"topic@group": {queue: offset}}`.

    Raises:
        ValueError: The table is malformed.
    """
    if not isinstance(data, Mapping):
        raise ValueError("offsetTable is not an object")
    table: Table = {}
    for key, queues in data.items():
        topic, separator, group = str(key).partition(SEPARATOR)
        if not separator or not isinstance(queues, Mapping):
            raise ValueError(f"offsetTable entry {key!r} is not topic@group with an object")
        table[topic, group] = {
            read_number(key, q): read_number(key, at) for q, at in queues.items()
        }
    return table


def read_number(key: object, value: object) -> int:
    """Return a number that is given as number or text.

    Raises:
        ValueError: It is neither.
    """
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f"offsetTable entry {key!r} has {value!r}, not a number")
    try:
        return int(value)
    except ValueError:
        raise ValueError(f"offsetTable entry {key!r} has {value!r}, not a number") from None
