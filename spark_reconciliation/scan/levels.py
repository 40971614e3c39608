"""Delays of levels: from `messageDelayLevel`, or from the store.

A level message whose queue has lost its unit has a level, but no due time. DueMQ keeps the levels
of a store in config/delayLevels.json; Apache's broker does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from delayed_delivery.level_delays import DEFAULT_LEVELS, parse_levels
from duemq_common.errors import ConfigError, UsageError
from spark_reconciliation.scan.files import Root
from spark_reconciliation.scan.store_state import BAD_INPUT, read_json

LEVELS_FILE: Final = "config/delayLevels.json"


def levels_ms_of(text: str) -> tuple[int, ...]:
    """Return the delays of levels 1, 2, ... of a `messageDelayLevel`.

    Raises:
        UsageError: The text is malformed.
    """
    words = " ".join(text.split())
    try:
        return tuple(parse_levels(words)[1:].tolist()) if words else ()
    except ConfigError as error:
        reason = f"{text!r} is not a list of levels; example: `1s 5s 1m 2h 1d`"
        raise UsageError(reason) from error


DEFAULT_LEVELS_MS: Final = levels_ms_of(DEFAULT_LEVELS)


def stored_levels_ms(paths: Sequence[str]) -> dict[tuple[int, ...], list[int]]:
    """Return the newest delays of stores, and the numbers of the stores that have them.

    A store without saved delays gets those of the other stores if these agree.
    """
    stores_by_levels: dict[tuple[int, ...], list[int]] = {}
    for number, levels in enumerate(map(_stored_levels, paths)):
        stores_by_levels.setdefault(levels, []).append(number)
    unknown = stores_by_levels.pop((), [])
    if len(stores_by_levels) == 1:
        stores_by_levels[next(iter(stores_by_levels))] += unknown
    return stores_by_levels


def tables_of(root: Root) -> tuple[tuple[int, ...], ...]:
    """Return the delays of all saved tables of levels of a store, oldest first.

    Raises:
        UsageError: The file is malformed.
    """
    try:
        history = read_json(root, LEVELS_FILE).get("history", ())
        return tuple(levels_ms_of(str(row["levels"])) for row in history)
    except BAD_INPUT as error:
        raise UsageError(f"{root.url}/{LEVELS_FILE} cannot be read: {error}") from error


def _stored_levels(path: str) -> tuple[int, ...]:
    try:
        return levels_ms_of(str(read_json(Root(path), LEVELS_FILE)["history"][-1]["levels"]))
    except (*BAD_INPUT, UsageError):
        return ()
