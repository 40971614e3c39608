"""A lease ends before the controller may have elected another."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from duemq.replication.controller.lease import Lease

LIMIT_MS = 3_000
LENGTH_MS = 2_700


def held(*, epoch: int = 1, sent_ms: int = 1_000) -> Lease:
    """Return a lease of which both questions were sent and answered."""
    lease = Lease(LIMIT_MS)
    ticket = lease.ticket(sent_ms)
    lease.heartbeat_succeeded(ticket)
    lease.epoch_confirmed(epoch, ticket)
    return lease


def test_a_lease_begins_invalid() -> None:
    assert not Lease(LIMIT_MS).is_valid(0, 0)
    assert not Lease(LIMIT_MS).is_valid(1, 0)


def test_it_ends_a_limit_less_the_margin_after_the_questions_were_sent() -> None:
    lease = held(sent_ms=1_000)
    assert lease.is_valid(1, 1_000 + LENGTH_MS - 1)
    assert not lease.is_valid(1, 1_000 + LENGTH_MS)


def test_it_is_of_one_epoch() -> None:
    lease = held(epoch=4)
    assert not lease.is_valid(3, 1_001)
    assert not lease.is_valid(5, 1_001)


def test_a_heartbeat_alone_and_a_view_alone_are_not_enough() -> None:
    lease = held(sent_ms=1_000)
    lease.heartbeat_succeeded(lease.ticket(3_000))
    assert not lease.is_valid(1, 1_000 + LENGTH_MS)
    lease.epoch_confirmed(1, lease.ticket(2_000))
    assert lease.valid_until_ms == 2_000 + LENGTH_MS
    only = Lease(LIMIT_MS)
    only.epoch_confirmed(1, only.ticket(0))
    assert not only.is_valid(1, 1)


def test_a_heartbeat_does_not_extend_the_lease_of_a_newer_epoch() -> None:
    lease = held(epoch=1, sent_ms=0)
    lease.epoch_confirmed(2, lease.ticket(500))
    assert lease.is_valid(2, 501)
    lease.epoch_confirmed(1, lease.ticket(600))  # late
    assert lease.epoch == 2
    assert lease.valid_until_ms == LENGTH_MS


def test_late_answers_do_not_shorten_it() -> None:
    lease = Lease(LIMIT_MS)
    old, new = lease.ticket(100), lease.ticket(900)
    for ticket in (new, old):
        lease.heartbeat_succeeded(ticket)
        lease.epoch_confirmed(1, ticket)
    assert lease.valid_until_ms == 900 + LENGTH_MS


def test_answers_to_questions_before_a_revocation_do_not_count() -> None:
    lease = held(sent_ms=1_000)
    before = lease.ticket(1_100)
    lease.revoke()
    assert not lease.is_valid(1, 1_000)
    lease.heartbeat_succeeded(before)
    lease.epoch_confirmed(1, before)
    assert not lease.is_valid(1, 1_101)
    after = lease.ticket(1_100)
    lease.epoch_confirmed(1, after)
    assert not lease.is_valid(1, 1_101)  # the heartbeat was one of the lost connection
    lease.heartbeat_succeeded(after)
    assert lease.is_valid(1, 1_101)


def test_the_confirmation_of_an_older_epoch_does_not_extend_a_newer_one() -> None:
    lease = held(epoch=1, sent_ms=1_000)
    lease.epoch_confirmed(2, lease.ticket(900))
    assert lease.valid_until_ms == 900 + LENGTH_MS
    newer = held(epoch=2, sent_ms=1_000)
    newer.heartbeat_succeeded(newer.ticket(1_500))
    newer.epoch_confirmed(1, newer.ticket(1_500))
    assert newer.valid_until_ms == 1_000 + LENGTH_MS


@given(
    limit_ms=st.integers(500, 60_000),
    rate_ppm=st.integers(-83_000, 83_000),
    travel_ms=st.lists(st.integers(0, 500), min_size=1, max_size=8),
    period_ms=st.integers(50, 1_000),
)
def test_no_election_for_want_of_heartbeats_while_it_is_valid(
    limit_ms: int, rate_ppm: int, travel_ms: list[int], period_ms: int
) -> None:
    """The controller's clock runs at another rate; each heartbeat takes its time to arrive."""
    lease = Lease(limit_ms)
    arrived_ms = 0.0
    for number, travel in enumerate(travel_ms):
        sent_ms = number * period_ms
        ticket = lease.ticket(sent_ms)
        arrived_ms = max(arrived_ms, sent_ms + travel)
        lease.heartbeat_succeeded(ticket)
        lease.epoch_confirmed(1, ticket)
    elected_ms = arrived_ms + limit_ms / (1 + rate_ppm / 1_000_000)
    assert lease.valid_until_ms <= elected_ms
