"""Policies of one account, indexed for fast decisions.

Entries are looked up by the requested name: in a table of literal names, and in a table of prefixes
for each length that a prefix of the ACL has. The cost depends neither on the number of entries nor
on the length of the name: a heartbeat may contain thousands of topics, and a hostile request a name
of a megabyte.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cmp_to_key

from duemq.auth.model import (
    Acl,
    Action,
    Decision,
    Pattern,
    PolicyEntry,
    Resource,
    ResourceType,
    compare_entries,
)

Key = tuple[ResourceType, Pattern, str]
Place = tuple[int, PolicyEntry]
_ANY = (ResourceType.ANY, Pattern.ANY, "")


class Policies:
    """Indexed entries of an ACL."""

    def __init__(self, acl: Acl) -> None:
        self._tables = [_table_of(entries) for entries in (acl.custom, acl.default)]
        self._entries = (*acl.custom, *acl.default)
        self._prefix_lengths = _prefix_lengths_of(self._entries)

    def decide(
        self, resource: Resource, actions: Iterable[Action], address: str
    ) -> PolicyEntry | None:
        """Return the entry that decides about a request; None if no entry matches.

        Entries of the custom policy take precedence over the default policy. Matching entries are
        ordered as in Apache 5.3.3 (`AclAuthorizationHandler.comparePolicyEntries`). That is not a
        total order, but Java and Python use the same sort algorithm, so the first entry is equal.
        """
        any_of = tuple(actions)
        keys = list(_keys_of(resource, self._prefix_lengths.get(resource.type, ())))
        for table in self._tables:
            numbered_entries = sorted(
                numbered_entry for key in keys for numbered_entry in table.get(key, ())
            )
            if entries := [e for _, e in numbered_entries if e.matches(resource, any_of, address)]:
                return sorted(entries, key=cmp_to_key(compare_entries))[0]
        return None

    def may_publish(self, address: str) -> bool:
        """Return whether an entry allows a client address to send to some topic."""
        return any(
            entry.decision is Decision.ALLOW
            and entry.resource.type in (ResourceType.TOPIC, ResourceType.ANY)
            and entry.matches(entry.resource, (Action.PUB,), address)
            for entry in self._entries
        )


def _table_of(entries: tuple[PolicyEntry, ...]) -> dict[Key, list[Place]]:
    table: dict[Key, list[Place]] = {}
    for index, entry in enumerate(entries):
        named = entry.resource
        any_type = named.type is ResourceType.ANY
        key = _ANY if any_type else (named.type, named.pattern, named.name or "")
        table.setdefault(key, []).append((index, entry))
    return table


def _prefix_lengths_of(entries: Iterable[PolicyEntry]) -> dict[ResourceType, list[int]]:
    """Return the distinct lengths of prefixes by type of resource, in ascending order."""
    lengths_by_kind: dict[ResourceType, set[int]] = {}
    for resource in (entry.resource for entry in entries):
        if resource.pattern is Pattern.PREFIXED:
            lengths_by_kind.setdefault(resource.type, set()).add(len(resource.name or ""))
    return {kind: sorted(lengths) for kind, lengths in lengths_by_kind.items()}


def _keys_of(requested: Resource, prefix_lengths: Iterable[int]) -> Iterator[Key]:
    """Yield the keys of all entries that may match a requested resource.

    Args:
        prefix_lengths: Lengths of the prefixes in the ACL, in ascending order.
    """
    kind, name = requested.type, requested.name or ""
    yield _ANY
    if kind is ResourceType.ANY:
        return
    yield kind, Pattern.ANY, ""
    yield kind, Pattern.LITERAL, name
    for length in prefix_lengths:
        if length > len(name):
            return
        yield kind, Pattern.PREFIXED, name[:length]
