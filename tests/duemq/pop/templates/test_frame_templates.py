"""Templates of connections: recently used templates remain, unused ones are not accepted."""

from __future__ import annotations

from typing import Any, cast

from duemq.net.connection import Connection
from duemq.pop.templates.frame_templates import TEMPLATES_MAX, UNUSED_MAX, ConnectionTemplates


class FakeConnection:
    """Connection that can be closed."""

    def __init__(self) -> None:
        self.callbacks: list[Any] = []

    def on_close(self, callback: Any) -> None:
        self.callbacks.append(callback)


def connection() -> tuple[Connection, FakeConnection]:
    fake = FakeConnection()
    return cast(Connection, fake), fake


def test_the_most_recently_used_templates_remain() -> None:
    peer, _ = connection()
    templates = ConnectionTemplates[int]()
    assert templates.of(peer) is None
    for number in range(TEMPLATES_MAX + 2):
        templates.add(peer, number)
    cache = templates.of(peer)
    assert cache is not None
    last = TEMPLATES_MAX + 1
    assert cache.templates == list(range(last, last - TEMPLATES_MAX, -1))
    cache.matched(2)
    assert cache.templates[:3] == [last - 2, last, last - 1]


def test_no_template_is_accepted_while_recent_ones_have_no_match() -> None:
    peer, _ = connection()
    other, _ = connection()
    templates = ConnectionTemplates[int]()
    for number in range(UNUSED_MAX):
        assert templates.accepts(peer)
        templates.add(peer, number)
    assert not templates.accepts(peer)
    assert templates.accepts(other)
    cache = templates.of(peer)
    assert cache is not None
    cache.matched(0)
    assert templates.accepts(peer)


def test_a_closed_connection_has_no_templates() -> None:
    peer, fake = connection()
    templates = ConnectionTemplates[int]()
    templates.add(peer, 1)
    templates.add(peer, 2)
    [removed] = fake.callbacks
    removed(peer)
    assert templates.of(peer) is None
