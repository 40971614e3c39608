"""Roles of records in an audit: the column `role` of `messages`."""

from __future__ import annotations

from typing import Final

# A record of ROLE_NONE takes no part. Of the roles from RARE on, the message that a record belongs
# to is known only together with other records.
ROLE_NONE, ROLE_LEVEL, ROLE_TIMER, ROLE_DELIVERY = 0, 1, 2, 3
PLAIN: Final = frozenset({ROLE_LEVEL, ROLE_TIMER, ROLE_DELIVERY})
RARE: Final = 8
ROLE_LEVEL_COPY, ROLE_TIMER_COPY = 8, 9  # copies of another pending record
ROLE_QUARANTINE, ROLE_MARK, ROLE_DECISION = 10, 11, 12  # these end the record that they name
ROLE_MARKER, ROLE_CANDIDATE = 13, 14  # a client's marker; a delivery of Apache's: name none
ROLE_TOPIC, ROLE_GAP = 15, 16  # no records: the name of a topic; a place that cannot be read
ROLE_UNIT = 17  # of the audit's own: a queue's unit without a record
ROLE_CLOCK = 18  # a record from which on the clock was set back: from out_ms to store_ms
ROLE_GONE, ROLE_PAST = 19, 20  # units of records before the log's begin: pending; settled
PENDING_ROLES: Final = (ROLE_LEVEL, ROLE_TIMER, ROLE_LEVEL_COPY, ROLE_TIMER_COPY)
"""Roles of pending records."""
