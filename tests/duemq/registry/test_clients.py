from __future__ import annotations

import random
from typing import Any

import pytest

from duemq.net.memory import MemoryBudget
from duemq.registry.clients import CHANNEL_EXPIRES_MS, ClientTable
from duemq.registry.heartbeats import ConsumerEntry, Heartbeat
from duemq.registry.subscriptions import parse_expression
from duemq_common.errors import RequestError
from tests.support.fakes import FakePeer


def beat(
    client: str = "c",
    groups: tuple[str, ...] = ("G",),
    topics: tuple[tuple[str, int], ...] = (("T", 1),),
    producers: tuple[str, ...] = (),
    model: str = "CLUSTERING",
    **more: int,
) -> Heartbeat:
    subscriptions = tuple(parse_expression(t, "*", version=v) for t, v in topics)
    entries = tuple(
        ConsumerEntry(g, "CONSUME_PASSIVELY", model, "x", subscriptions) for g in groups
    )
    return Heartbeat(client, tuple(producers), entries, **more)


def register(
    table: ClientTable, peer: FakePeer, heartbeat: Heartbeat, now_ms: int = 0
) -> dict[str, set[FakePeer]]:
    changes = table.heartbeat(heartbeat, peer, language="JAVA", version=479, now_ms=now_ms)
    return {change.group: set(change.peers) for change in changes}


def test_a_new_member_changes_its_group_and_all_hear_of_it() -> None:
    table, a, b = ClientTable(), FakePeer("a"), FakePeer("b")
    assert register(table, a, beat("a")) == {"G": {a}}
    assert register(table, b, beat("b")) == {"G": {a, b}}
    assert table.members("G") == ["a", "b"]


@pytest.mark.parametrize(
    ("topics", "changed"),
    [
        ((("T", 1),), False),
        ((("T", 2),), False),
        ((("T", 1), ("U", 1)), True),
        ((("U", 1),), True),
        ((), True),
    ],
)
def test_a_group_changes_when_topics_come_or_go(
    topics: tuple[tuple[str, int], ...], changed: bool
) -> None:
    table, peer = ClientTable(), FakePeer()
    register(table, peer, beat())
    assert bool(register(table, peer, beat(topics=topics))) is changed


def test_an_older_version_does_not_replace_a_newer() -> None:
    table, peer = ClientTable(), FakePeer()
    register(table, peer, beat(topics=(("T", 5),)))
    register(table, peer, beat(topics=(("T", 3),)))
    assert table.subscription("G", "T").version == 5
    register(table, peer, beat(topics=(("T", 6),)))
    assert table.subscription("G", "T").version == 6


def test_without_subscriptions_leaves_them_alone() -> None:
    table, peer = ClientTable(), FakePeer()
    register(table, peer, beat())
    assert register(table, peer, beat(topics=(), without_sub=True, fingerprint=1)) == {}
    assert table.subscription("G", "T") is not None


def test_one_client_id_on_two_connections_is_listed_once() -> None:
    table, old, new = ClientTable(), FakePeer("old"), FakePeer("new")
    register(table, old, beat("c"))
    register(table, new, beat("c"), now_ms=1)
    assert table.members("G") == ["c"]
    assert table.consumer_group("G").find("c").peer is new
    table.close(old)
    assert table.members("G") == ["c"]


def test_a_producer_and_a_consumer_of_one_process_share_an_id() -> None:
    table, peer = ClientTable(), FakePeer()
    register(table, peer, beat("c", producers=("P",)))
    table.unregister(peer, consumer_group="G")
    assert table.consumer_group("G") is None
    assert table.producer("P").peer is peer


def test_close_reports_the_rest_and_clears_everything() -> None:
    table, a, b = ClientTable(), FakePeer("a"), FakePeer("b")
    register(table, a, beat("a", producers=("P",), groups=("G", "H")))
    register(table, b, beat("b"))
    changes = table.close(a)
    assert [(c.group, c.peers) for c in changes] == [("G", (b,))]
    assert table.members("H") == []
    assert table.producer("P") is None
    assert table.close(a) == []


def test_silent_connections_expire() -> None:
    table, quiet, loud = ClientTable(), FakePeer("quiet"), FakePeer("loud")
    register(table, quiet, beat("a"))
    register(table, loud, beat("b"), now_ms=CHANNEL_EXPIRES_MS)
    assert table.expire(CHANNEL_EXPIRES_MS) == ([], [])
    silent, changes = table.expire(CHANNEL_EXPIRES_MS + 1)
    assert silent == [quiet]
    assert [(c.group, c.peers) for c in changes] == [("G", (loud,))]


def test_the_newest_open_connection_of_a_producer_group_is_asked() -> None:
    table, old, new = ClientTable(), FakePeer("old"), FakePeer("new")
    register(table, new, beat("n", (), producers=("P",)), now_ms=2)
    register(table, old, beat("o", (), producers=("P",)), now_ms=1)
    assert table.producer("P").peer is new
    new.closed = True
    assert table.producer("P").peer is old
    assert table.find_client("o").peer is old
    assert table.find_client("n") is None


@pytest.mark.parametrize("seed", range(5))
def test_members_are_those_of_a_naive_model(seed: int) -> None:
    chance, table, model = random.Random(seed), ClientTable(), dict[Any, Any]()
    peers = [FakePeer(str(n)) for n in range(6)]
    for now_ms in range(300):
        peer, group = chance.choice(peers), chance.choice("GHI")
        match chance.randrange(4):
            case 0 | 1:
                register(table, peer, beat(peer.name, (group,)), now_ms)
                model.setdefault(group, set()).add(peer)
            case 2:
                table.unregister(peer, consumer_group=group)
                model.get(group, set()).discard(peer)
            case 3:
                table.close(peer)
                for members in model.values():
                    members.discard(peer)
        for name in "GHI":
            assert table.members(name) == sorted(p.name for p in model.get(name, ()))


@pytest.mark.finding("3S3")
def test_groups_and_subscriptions_count_in_the_memory_budget() -> None:
    memory = MemoryBudget(1 << 30)
    table, a, b = ClientTable(memory=memory), FakePeer("a"), FakePeer("b")
    names = tuple(f"{number:04}" + "\U0001f600" * 250 for number in range(100))
    register(table, a, beat("a", producers=names))
    assert memory.used_bytes >= 100 * (2 * 254 * 4 + 500)
    used_bytes = memory.used_bytes
    register(table, a, beat("a", producers=names))
    assert memory.used_bytes == used_bytes
    register(table, b, beat("b", topics=(("T", 2), ("U" * 200, 1))))
    assert memory.used_bytes > used_bytes + 2_000
    register(table, b, beat("b", groups=("G", "H"), topics=(("T", 3),)))
    table.unregister(a, producer_group=names[0])
    table.close(a)
    table.expire(CHANNEL_EXPIRES_MS + 1)
    assert memory.used_bytes == 0


@pytest.mark.finding("3S3")
def test_a_large_heartbeat_is_refused_while_memory_is_scarce_and_a_small_one_is_not() -> None:
    memory = MemoryBudget(1 << 20)
    table, a, b = ClientTable(memory=memory), FakePeer("a"), FakePeer("b")
    with pytest.raises(RequestError, match="remotingMemoryMax"):
        register(table, a, beat("a", producers=tuple(map(str, range(1_000)))))
    assert memory.used_bytes == 0
    register(table, a, beat("a", producers=tuple(map(str, range(600)))))
    memory.reserve(1 << 19, is_checked=True)
    register(table, b, beat("b", producers=("P", "Q")))
    register(table, a, beat("a", producers=tuple(map(str, range(600)))))
    with pytest.raises(RequestError, match="remotingMemoryMax"):
        register(table, b, beat("b", topics=tuple((f"T{number}", 1) for number in range(20))))
    assert table.topics_of("G") == ["T"]
