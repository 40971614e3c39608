"""Tally of a plain message: one number that each of its records adds to.

    bits      meaning
    0-7       pending records
    8 - 10    the pending record is damaged; names no target; belongs to a level
    11, 12    it is known whether its time has passed; it has passed
    13        its due time is unknown here
    14        a record of a rare role belongs to the message
    15, 16    its unit has another time; no unit points at it
    17-31     units of records that were removed
    32-47     deliveries
    48-55     deliveries that are damaged
    56-63     deliveries that no unit of their queue points at

`record_tally` is the only definition. It is evaluated over NumPy arrays, where a worker packs sums
(`plain_sums`), and over columns of a Spark table (`plain_histories`).
"""

from __future__ import annotations

from typing import Final, Protocol, TypeVar

from reconciliation.scan.roles import Role

HURT, NO_TARGET, LEVEL, KNOWN, PASSED, UNUSUAL, TOUCHED, OTHER_TIME = 8, 9, 10, 11, 12, 13, 14, 15
NO_UNIT, PAST, SENT, SENT_HURT, SENT_AWAY = 16, 17, 32, 48, 56
COUNT_MASK, PAST_MASK, SENT_MASK = 0xFF, 0x7FFF, 0xFFFF
STORE_BITS: Final = 48
"""The key of a message is its store's number << 48 | the log offset of its pending record."""
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
    """Return what each record adds to the tally of its message."""
    hurt, away = rows.invert(rows.is_null("damage")), rows.equals("queued", False)
    pending = rows.bits(
        1,
        (hurt, HURT),
        (rows.is_null("target"), NO_TARGET),
        (rows.equals("role", Role.LEVEL), LEVEL),
        (rows.invert(rows.is_null("passed")), KNOWN),
        (rows.equals("passed", 1), PASSED),
        (rows.equals("other_time", True), OTHER_TIME),
        (away, NO_UNIT),
    )
    delivery = rows.bits(1 << SENT, (hurt, SENT_HURT), (away, SENT_AWAY))
    others = rows.choose(rows.equals("role", Role.PAST), rows.bits(1 << PAST), pending)
    return rows.choose(rows.equals("role", Role.DELIVERY), delivery, others)
