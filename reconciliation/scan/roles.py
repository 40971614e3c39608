"""Roles of records in an audit: the column `role` of `messages`."""

from __future__ import annotations

from typing import Final


class Role:
    """Values of the column."""

    NONE = 0  # takes no part
    LEVEL = 1  # a pending record of a level
    TIMER = 2  # a pending record of the timers
    DELIVERY = 3
    LEVEL_COPY = 8  # a copy of another pending record
    TIMER_COPY = 9
    QUARANTINE = 10  # this one and the next two end the record that they name
    MARK = 11
    DECISION = 12
    MARKER = 13  # of a client: names no record
    CANDIDATE = 14  # may be a delivery of an Apache broker: names no record
    TOPIC = 15  # no record: the name of a topic
    GAP = 16  # no record: a place that cannot be read
    UNIT = 17  # no record: a queue's unit without one
    CLOCK = 18  # from this record on the clock was set back: from out_ms to store_ms
    GONE = 19  # a unit of a removed record that was pending
    PAST = 20  # a unit of a removed record that was settled


RARE: Final = Role.LEVEL_COPY
"""From here on other records are needed to know the message of a record."""
PLAIN: Final = frozenset({Role.LEVEL, Role.TIMER, Role.DELIVERY})
PENDING_ROLES: Final = (Role.LEVEL, Role.TIMER, Role.LEVEL_COPY, Role.TIMER_COPY)
