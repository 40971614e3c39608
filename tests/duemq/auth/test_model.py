"""Resources, policies and the order in which entries decide."""

from __future__ import annotations

import pytest

from duemq.auth.model import (
    Action,
    Decision,
    Pattern,
    PolicyEntry,
    Resource,
    ResourceType,
    UserType,
    contains,
    is_network,
)

ORDERS = Resource(ResourceType.TOPIC, "orders")


def entry(
    key: str,
    decision: Decision = Decision.ALLOW,
    actions: tuple[Action, ...] = (Action.PUB,),
    networks: tuple[str, ...] = (),
) -> PolicyEntry:
    resource = Resource.parse(key)
    assert resource is not None
    return PolicyEntry(resource, actions, decision, networks)


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("*", Resource(ResourceType.ANY, None, Pattern.ANY)),
        ("Topic:orders", ORDERS),
        ("topic:orders", ORDERS),
        ("Topic:ord*", Resource(ResourceType.TOPIC, "ord", Pattern.PREFIXED)),
        ("Topic:a*b*", Resource(ResourceType.TOPIC, "a", Pattern.PREFIXED)),
        ("Group:*", Resource(ResourceType.GROUP, None, Pattern.ANY)),
        ("Cluster:DefaultCluster", Resource(ResourceType.CLUSTER, "DefaultCluster")),
        ("Queue:orders", None),
        ("orders", None),
    ],
)
def test_keys_of_resources(key: str, expected: Resource | None) -> None:
    assert Resource.parse(key) == expected


@pytest.mark.parametrize("key", ["*", "Topic:orders", "Topic:ord*", "Group:*"])
def test_a_key_survives_parsing(key: str) -> None:
    resource = Resource.parse(key)
    assert resource is not None
    assert resource.key == key


def test_a_retry_topic_names_its_group() -> None:
    assert Resource.group("%RETRY%billing") == Resource(ResourceType.GROUP, "billing")
    assert Resource.group("billing") == Resource(ResourceType.GROUP, "billing")


@pytest.mark.parametrize(
    ("key", "requested", "expected"),
    [
        ("*", "Group:billing", True),
        ("Topic:*", "Topic:orders", True),
        ("Topic:*", "Group:orders", False),
        ("Topic:ord*", "Topic:orders", True),
        ("Topic:ord*", "Topic:or", False),
        ("Topic:orders", "Topic:orders", True),
        ("Topic:orders", "Topic:Orders", False),
    ],
)
def test_resources_match(key: str, requested: str, expected: bool) -> None:
    pattern, resource = Resource.parse(key), Resource.parse(requested)
    assert pattern is not None
    assert resource is not None
    assert pattern.matches(resource) is expected


@pytest.mark.parametrize(
    ("actions", "wanted", "expected"),
    [
        ((Action.PUB,), (Action.PUB,), True),
        ((Action.PUB,), (Action.SUB,), False),
        ((Action.SUB,), (Action.PUB, Action.SUB), True),  # any of them
        ((Action.ALL,), (Action.DELETE,), True),
        ((Action.DELETE,), (Action.ANY,), True),
        ((), (Action.ANY,), False),
    ],
)
def test_actions_match(
    actions: tuple[Action, ...], wanted: tuple[Action, ...], expected: bool
) -> None:
    found = entry("Topic:orders", actions=actions)
    assert found.matches(ORDERS, wanted, "127.0.0.1") is expected


@pytest.mark.parametrize(
    ("networks", "address", "expected"),
    [
        ((), "10.1.2.3", True),
        (("10.1.2.3",), "10.1.2.3", True),
        (("10.1.2.3",), "10.1.2.4", False),
        (("10.0.0.0/8",), "10.1.2.3", True),
        (("10.9.9.9/8",), "10.1.2.3", True),
        (("192.168.0.0/16", "10.0.0.0/8"), "10.1.2.3", True),
        (("fe80::/10",), "fe80::1", True),
        (("10.0.0.0/8",), "fe80::1", False),
        (("2001:DB8::7",), "2001:db8::7", True),
        (("2001:db8:0:0:0:0:0:7",), "2001:db8::7", True),
        (("2001:db8::8",), "2001:db8::7", False),
        (("2001:db8::7",), "10.1.2.3", False),
        (("nonsense",), "10.1.2.3", False),
        (("nonsense/8",), "10.1.2.3", False),
    ],
)
def test_networks_match(networks: tuple[str, ...], address: str, expected: bool) -> None:
    assert entry("*", networks=networks).matches(ORDERS, (Action.PUB,), address) is expected


@pytest.mark.parametrize("name", ["super", "Super", "SUPER"])
def test_names_on_the_wire_ignore_case(name: str) -> None:
    assert UserType.named(name) is UserType.SUPER
    assert UserType.named("root") is None
    assert UserType.named(None) is None


def test_networks_are_validated() -> None:
    assert is_network("10.0.0.0/8")
    assert is_network("::1")
    assert not is_network("10.0.0.0/99")
    assert not is_network("localhost")
    assert contains("10.0.0.0/8", "10.255.0.1")
