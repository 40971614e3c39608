"""Users, resources and policies, in RocketMQ 5.3.3's terms.

A user has an ACL: at most one custom and one default policy, each a list of entries. An entry
allows or denies actions on a resource, optionally only from some networks.

    User:alice -> Custom:  Topic:orders*   Pub,Sub  from 10.0.0.0/8   Allow
                  Default: *               Get                        Allow

Source: auth/authentication/model, auth/authorization/model of Apache RocketMQ 5.3.3.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from enum import Enum
from functools import lru_cache
from typing import Final, Self

from msgspec import Struct

from duemq_common.topics import RETRY_PREFIX

PARSED_MAX: Final = 4_096  # cached addresses and networks; parsing dominates a check


class Named(Enum):
    """Enumeration whose values are names on the wire, compared case-insensitively."""

    @classmethod
    def named(cls, name: str | None) -> Self | None:
        """Return the member with this name, or None."""
        lower = (name or "").lower()
        return next((member for member in cls if member.value.lower() == lower), None)


class UserType(Named):
    """Type of a user: SUPER has every permission, NORMAL those of its ACL."""

    SUPER = "Super"
    NORMAL = "Normal"


class UserStatus(Named):
    """Status of a user; a disabled one is refused before its signature is checked."""

    ENABLE = "enable"
    DISABLE = "disable"


class Action(Named):
    """Action of a request on a resource; ALL matches every action."""

    UNKNOWN = "Unknown"
    ALL = "All"
    ANY = "Any"
    PUB = "Pub"
    SUB = "Sub"
    CREATE = "Create"
    UPDATE = "Update"
    DELETE = "Delete"
    GET = "Get"
    LIST = "List"


class ResourceType(Named):
    """Kinds of resources."""

    UNKNOWN = "Unknown"
    ANY = "Any"
    CLUSTER = "Cluster"
    NAMESPACE = "Namespace"
    TOPIC = "Topic"
    GROUP = "Group"


class Pattern(Enum):
    """Comparison of resource names."""

    ANY = 1
    LITERAL = 2
    PREFIXED = 3


class PolicyType(Named):
    """Type of a policy; custom entries take precedence over default ones."""

    CUSTOM = "Custom"
    DEFAULT = "Default"


class Decision(Named):
    """Decision of an entry."""

    ALLOW = "Allow"
    DENY = "Deny"


class Resource(Struct, frozen=True):
    """Resource of a request (always literal) or of a policy entry.

    Attributes:
        type: Type of the resource.
        name: Name or prefix; None if the pattern is ANY.
        pattern: How names are compared.
    """

    type: ResourceType
    name: str | None
    pattern: Pattern = Pattern.LITERAL

    @classmethod
    def parse(cls, key: str) -> Resource | None:
        """Parse a key: `*`, `Topic:orders`, `Topic:ord*`, `Topic:*`.

        Returns:
            None if the type is unknown.
        """
        if key.strip() == "*":
            return cls(ResourceType.ANY, None, Pattern.ANY)
        kind, _, name = key.partition(":")
        if (type_ := ResourceType.named(kind)) is None:
            return None
        if name == "*":
            return cls(type_, None, Pattern.ANY)
        if name.endswith("*"):
            return cls(type_, name.partition("*")[0], Pattern.PREFIXED)
        return cls(type_, name)

    @classmethod
    def group(cls, name: str) -> Resource:
        """Return the resource of a consumer group, given its name or that of its retry topic."""
        return cls(ResourceType.GROUP, name.removeprefix(RETRY_PREFIX))

    @classmethod
    def of_topic(cls, name: str) -> Resource:
        """Return the resource of a topic; for a retry topic, of its consumer group."""
        return cls.group(name) if is_retry_topic(name) else cls(ResourceType.TOPIC, name)

    @property
    def key(self) -> str:
        """Key of the resource, in the form of `parse`."""
        if self.type is ResourceType.ANY:
            return "*"
        star = "" if self.pattern is Pattern.LITERAL else "*"
        return f"{self.type.value}:{self.name or ''}{star}"

    def matches(self, requested: Resource) -> bool:
        """Return whether an entry with this resource applies to the requested one."""
        if self.type is ResourceType.ANY:
            return True
        if self.type is not requested.type:
            return False
        if self.pattern is Pattern.ANY:
            return True
        if self.pattern is Pattern.PREFIXED:
            return (requested.name or "").startswith(self.name or "")
        return requested.name == self.name


def is_retry_topic(name: str | None) -> bool:
    """Return whether a topic belongs to a consumer group (`NamespaceUtil.isRetryTopic`)."""
    return name is not None and name.startswith(RETRY_PREFIX)


class User(Struct, frozen=True):
    """An account.

    Attributes:
        name: The access key of requests.
        password: Secret key that signs requests; stored in clear text, as HMAC requires.
    """

    name: str
    password: str
    type: UserType = UserType.NORMAL
    status: UserStatus = UserStatus.ENABLE


class PolicyEntry(Struct, frozen=True):
    """Decision about actions on a resource.

    Attributes:
        actions: Actions; an entry without actions matches no request.
        networks: Client addresses and networks; empty: all.
    """

    resource: Resource
    actions: tuple[Action, ...]
    decision: Decision
    networks: tuple[str, ...] = ()

    def matches(self, resource: Resource, actions: Iterable[Action], address: str) -> bool:
        """Return whether the entry applies to a request from `address`."""
        return (
            self.resource.matches(resource)
            and self._matches_any(frozenset(actions))
            and (not self.networks or any(contains(network, address) for network in self.networks))
        )

    def _matches_any(self, actions: frozenset[Action]) -> bool:
        if not self.actions:
            return False
        return Action.ANY in actions or any(a in actions or a is Action.ALL for a in self.actions)


class Acl(Struct, frozen=True):
    """Policies of a user, entries in creation order."""

    custom: tuple[PolicyEntry, ...] = ()
    default: tuple[PolicyEntry, ...] = ()


def compare_entries(a: PolicyEntry, b: PolicyEntry) -> int:
    """Compare two matching entries as Apache 5.3.3 does; the lesser one decides.

    A resource of type ANY is greater than others. A literal or prefixed pattern is less than
    another pattern, whichever is compared first. Of two prefixes the shorter one is less. DENY is
    greater than ALLOW.
    """
    if a.resource.type is not b.resource.type:
        if b.resource.type is ResourceType.ANY:
            return -1
        if a.resource.type is ResourceType.ANY:
            return 1
    elif a.resource.pattern is b.resource.pattern:
        if a.resource.pattern is Pattern.PREFIXED:
            lengths = len(a.resource.name or ""), len(b.resource.name or "")
            if lengths[0] != lengths[1]:
                return -1 if lengths[0] < lengths[1] else 1
    elif a.resource.pattern in (Pattern.LITERAL, Pattern.PREFIXED):
        return -1
    if a.decision is Decision.DENY:
        return 1
    return -1 if b.decision is Decision.DENY else 0


def contains(network: str, address: str) -> bool:
    """Return whether a network, or a single address, contains the address of a client.

    IPv6 addresses are equal in any notation. Apache's broker compares single addresses as text
    (`IPAddressUtils.isIPInRange`). An invalid network contains no address.
    """
    if network == address:
        return True
    try:
        if "/" in network:
            return _address(address) in _network(network)
        return ":" in network and _address(address) == _address(network)
    except ValueError:
        return False


@lru_cache(PARSED_MAX)
def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    return ipaddress.ip_address(text)


@lru_cache(PARSED_MAX)
def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    return ipaddress.ip_network(text, strict=False)


def is_network(text: str) -> bool:
    """Return whether `text` is a valid address or network."""
    try:
        ipaddress.ip_network(text, strict=False)
    except ValueError:
        return False
    return True
