"""Filters over the properties of records in the log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from duemq.filters import Expression
from message_store.errors import RecordUnreadable

if TYPE_CHECKING:
    from message_store.store import MessageStore


def passing_units(
    store: MessageStore, units: npt.NDArray[Any], expression: Expression, count_max: int
) -> npt.NDArray[np.bool_]:
    """Return which units have a record that passes the filter.

    A record that cannot be read passes: what sends it reports the cause.

    Args:
        units: (n,) layout.UNIT.
        count_max: Maximum messages of one answer; units after these are not evaluated.

    Returns:
        (m,) bool, m <= n: the units before m were evaluated.
    """
    passing = np.zeros(units.size, np.bool_)
    found = 0
    for i, phys_offset in enumerate(units["phys_offset"].tolist()):
        passing[i] = passes = _passes(store, phys_offset, expression)
        found += passes
        if found >= count_max:
            return passing[: i + 1]
    return passing


def _passes(store: MessageStore, phys_offset: int, expression: Expression) -> bool:
    try:
        return expression.matches(store.read_record(phys_offset).properties)
    except RecordUnreadable:
        return True
