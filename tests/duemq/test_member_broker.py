"""Broker of a group: what its group service reads from it."""

from __future__ import annotations

from pathlib import Path

from duemq.member_broker import MemberBroker
from tests.support.free_ports import free_ports
from tests.support.running_broker import small


def test_replicas_are_unknown_while_no_broker_serves(tmp_path: Path) -> None:
    """An empty set would remove all replicas from the sync state set of a master that closes."""
    keys = {
        "enableControllerMode": "true",
        "controllerAddr": "127.0.0.1:1",
        "listenPort": str(free_ports(1)[0]),
    }
    member = MemberBroker({**small(tmp_path), **keys}, plugins=[])
    assert member.caught_up is None
