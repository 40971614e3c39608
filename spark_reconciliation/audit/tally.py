"""Tally of a plain message: a number to which each of its records adds.

    bits      meaning
    0-7       number of pending records
    8-10      the pending record is damaged; has no target; belongs to a level
    11, 12    it is known whether the owner has passed the due time; the owner has passed it
    13        the due time is unknown to the tallies
    14        a record of a rare role belongs to the message
    15, 16    its unit has another time; no unit points at it
    17-31     number of units whose record was removed
    32-47     number of deliveries
    48-55     number of damaged deliveries
    56-63     number of deliveries without a unit in their queue

`record_tally` is the only definition. It is evaluated on NumPy arrays, where a worker packs sums
(`plain_sums`), and on columns of a Spark table (`plain_histories`).
"""

from __future__ import annotations

from typing import Final, Protocol, TypeVar

from spark_reconciliation.scan.roles import Role

DAMAGED, NO_TARGET, LEVEL, KNOWN, PASSED, UNUSUAL, TOUCHED, OTHER_TIME = (
    8,
    9,
    10,
    11,
    12,
    13,
    14,
    15,
)
NO_UNIT, REMOVED, SENT, SENT_DAMAGED, SENT_WITHOUT_UNIT = 16, 17, 32, 48, 56
COUNT_MASK, REMOVED_MASK, SENT_MASK = 0xFF, 0x7FFF, 0xFFFF
STORE_BITS: Final = 48
"""Key of a message: number of its store << 48 | log offset of its pending record."""
PLACE_MAX: Final = (1 << STORE_BITS) - 1  # no record is at or after this log offset

V = TypeVar("V")


class Records(Protocol[V]):
    """Columns of `messages`, as arrays or as columns of a query; `V` is a value for each row."""

    def equals(self, name: str, value: int) -> V:
        """Return where a column has a value; false where it is null."""

    def is_null(self, name: str) -> V:
        """Return where a column is null."""

    def invert(self, flags: V) -> V:
        """Return where flags are false."""

    def bits(self, base: int, *flags: tuple[V, int]) -> V:
        """Return `base` plus 1 << place for each (flag, place) that holds."""

    def choose(self, flags: V, chosen: V, other: V) -> V:
        """Return `chosen` where flags are true, else `other`."""


def record_tally(rows: Records[V]) -> V:
    """Return the amount that each record adds to the tally of its message."""
    damaged, no_unit = rows.invert(rows.is_null("damage")), rows.equals("queued", False)
    pending = rows.bits(
        1,
        (damaged, DAMAGED),
        (rows.is_null("target"), NO_TARGET),
        (rows.equals("role", Role.LEVEL), LEVEL),
        (rows.invert(rows.is_null("passed")), KNOWN),
        (rows.equals("passed", 1), PASSED),
        (rows.equals("other_time", True), OTHER_TIME),
        (no_unit, NO_UNIT),
    )
    delivery = rows.bits(1 << SENT, (damaged, SENT_DAMAGED), (no_unit, SENT_WITHOUT_UNIT))
    others = rows.choose(
        rows.equals("role", Role.REMOVED_SETTLED), rows.bits(1 << REMOVED), pending
    )
    return rows.choose(rows.equals("role", Role.DELIVERY), delivery, others)
