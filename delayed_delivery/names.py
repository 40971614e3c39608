"""Names in records and responses that several packages write or read."""

from __future__ import annotations

from typing import Final

# Properties of an occurrence of a recurring schedule.
SCHEDULE_NAME: Final = "DUEMQ_SCHEDULE"
PLANNED_TIME: Final = "DUEMQ_SCHEDULE_TIME"
NEXT_TIME: Final = "DUEMQ_SCHEDULE_NEXT"
MANUAL: Final = "DUEMQ_SCHEDULE_MANUAL"
"""`trigger` or `backfill`: the occurrence was requested and is not planned by the schedule."""
OCCURRENCE_NAMES: Final = frozenset({SCHEDULE_NAME, PLANNED_TIME, NEXT_TIME, MANUAL})

REPAIRED: Final = "DUEMQ_REPAIRED"
"""Property of a message that `duemq send --from` has sent: log offset of the former record."""
CANCELLED_BODY: Final = b"0"
FIRED_BODY: Final = b"1"
MOVED_BODY: Final = b"2"
"""Bodies of markers and of notes in DUEMQ_DECISIONS: a cancel, a record after the delivery of a
fire, a record after the copy of a move. Apache's brokers ignore the body of a marker."""
MASTER_FIELD: Final = "masterAddress"
"""Field of a replica's response with the address of its master, empty if it is unknown."""
