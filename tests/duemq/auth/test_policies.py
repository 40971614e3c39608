"""Decisions of policies: the order of entries, and equality with a list and a filter."""

from __future__ import annotations

import tracemalloc
from functools import cmp_to_key

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duemq.auth.model import (
    Acl,
    Action,
    Decision,
    PolicyEntry,
    Resource,
    ResourceType,
    compare_entries,
)
from duemq.auth.policies import Policies
from tests.duemq.auth.test_model import ORDERS, entry

KEYS = ("*", "Topic:*", "Topic:", "Topic:a", "Topic:ab", "Topic:a*", "Topic:ab*", "Topic:*b")
ENTRIES = st.builds(
    entry,
    st.sampled_from([*KEYS, "Group:*", "Group:a", "Group:a*", "Cluster:a"]),
    st.sampled_from(Decision),
    st.sets(st.sampled_from([Action.PUB, Action.SUB, Action.ALL]), min_size=1).map(tuple),
    st.sampled_from([(), ("127.0.0.1",), ("10.0.0.0/8",)]),
)
REQUESTED = st.builds(
    Resource,
    st.sampled_from([ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER]),
    st.sampled_from([None, "", "a", "ab", "abc", "b"]),
)


def decided(acl: Acl, resource: Resource = ORDERS) -> str:
    found = Policies(acl).decide(resource, (Action.PUB,), "127.0.0.1")
    return "none" if found is None else f"{found.decision.value} {found.resource.key}"


@pytest.mark.parametrize(
    ("custom", "default", "expected"),
    [
        ([], [], "none"),
        ([], [entry("*")], "Allow *"),
        ([entry("*", Decision.DENY)], [entry("Topic:orders")], "Deny *"),
        ([entry("*"), entry("Topic:*", Decision.DENY)], [], "Deny Topic:*"),
        ([entry("Topic:*", Decision.DENY), entry("Topic:ord*")], [], "Allow Topic:ord*"),
        ([entry("Topic:o*"), entry("Topic:orde*", Decision.DENY)], [], "Allow Topic:o*"),
        ([entry("Topic:orders"), entry("Topic:orders", Decision.DENY)], [], "Allow Topic:orders"),
    ],
)
def test_the_entry_that_decides(
    custom: list[PolicyEntry], default: list[PolicyEntry], expected: str
) -> None:
    assert decided(Acl(tuple(custom), tuple(default))) == expected


def test_a_literal_and_a_prefix_decide_by_their_order() -> None:
    """Each is less than the other: the later one precedes, as in Apache's broker."""
    literal, prefix = entry("Topic:orders"), entry("Topic:ord*", Decision.DENY)
    assert decided(Acl((literal, prefix))) == "Deny Topic:ord*"
    assert decided(Acl((prefix, literal))) == "Allow Topic:orders"


def test_a_long_name_uses_memory_for_the_prefixes_of_the_acl_only() -> None:
    policies = Policies(Acl((entry("Topic:a*"), entry("Topic:aab*"), entry("Group:b*"))))
    requested = Resource(ResourceType.TOPIC, "a" * 10_000)
    tracemalloc.start()
    try:
        found = policies.decide(requested, (Action.PUB,), "127.0.0.1")
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found == entry("Topic:a*")
    assert peak_bytes < 100_000


def naive(acl: Acl, resource: Resource, actions: tuple[Action, ...]) -> PolicyEntry | None:
    """Return the entry that decides: of the matching ones, in their order, the least."""
    for entries in (acl.custom, acl.default):
        if found := [e for e in entries if e.matches(resource, actions, "127.0.0.1")]:
            return sorted(found, key=cmp_to_key(compare_entries))[0]
    return None


@given(st.lists(ENTRIES, max_size=8), st.lists(ENTRIES, max_size=4), REQUESTED)
def test_decisions_are_those_of_a_list_and_a_filter(
    custom: list[PolicyEntry], default: list[PolicyEntry], resource: Resource
) -> None:
    acl = Acl(tuple(custom), tuple(default))
    for actions in ((Action.PUB,), (Action.SUB, Action.GET)):
        expected = naive(acl, resource, actions)
        assert Policies(acl).decide(resource, actions, "127.0.0.1") == expected
