"""Roles of records in an audit: the column `role` of `messages`; topics of pending records."""

from __future__ import annotations

from typing import Final


class Role:
    """Values of the column `role`."""

    NONE = 0  # not part of an audit
    LEVEL = 1  # a pending record of a level
    TIMER = 2  # a pending record of the timers
    DELIVERY = 3
    LEVEL_COPY = 8  # a copy of another pending record
    TIMER_COPY = 9
    QUARANTINE = 10  # records of this role and the next two end the record that is their origin
    MARK = 11
    DECISION = 12
    MARKER = 13  # a marker of a client, without an origin
    CANDIDATE = 14  # possibly a delivery of an Apache broker, without an origin
    TOPIC = 15  # no record: the name of a topic
    GAP = 16  # no record: an unreadable range
    UNIT = 17  # no record: a unit of a queue that does not agree with its record
    CLOCK = 18  # a clock step at this record: from out_ms to store_ms
    REMOVED_PENDING = 19  # a unit of a removed record that was pending
    REMOVED_SETTLED = 20  # a unit of a removed record that was settled
    QUEUE = 21  # no record: sum of the records or units of a queue; see `queue_places`


RARE: Final = Role.LEVEL_COPY
"""First role whose records do not identify their message by themselves."""
PLAIN: Final = frozenset({Role.LEVEL, Role.TIMER, Role.DELIVERY})
PENDING_ROLES: Final = (Role.LEVEL, Role.TIMER, Role.LEVEL_COPY, Role.TIMER_COPY)
