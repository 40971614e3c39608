"""JSON form of users and ACLs, in requests 3001 to 3010 and in the accounts file.

    {"username": "alice", "password": "...", "userType": "Normal", "userStatus": "enable"}
    {"subject": "User:alice", "policies": [{"policyType": "Custom", "entries": [
        {"resource": "Topic:orders", "actions": ["Pub"], "sourceIps": ["10.0.0.0/8"],
         "decision": "Allow"}]}]}

Source: remoting/protocol/body/UserInfo and AclInfo, broker/auth/converter of Apache 5.3.3.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from duemq.auth.accounts import SUBJECT_PREFIX, AccountRefused
from duemq.auth.model import (
    Acl,
    Action,
    Decision,
    PolicyEntry,
    PolicyType,
    Resource,
    User,
    UserStatus,
    UserType,
)

JsonObject = Mapping[str, object]
Policies = dict[PolicyType, list[PolicyEntry]]
_INVALID: Final = "The body of acl is null"


def user_to_json(user: User) -> dict[str, object]:
    """Return the JSON object of a user."""
    return {
        "password": user.password,
        "userStatus": user.status.value,
        "userType": user.type.value,
        "username": user.name,
    }


def user_from_json(value: JsonObject, name: str | None = None) -> User:
    """Decode a user; type and status have defaults.

    Args:
        name: User name, instead of the object's `username`.
    """
    return User(
        name if name is not None else text_of(value, "username"),
        text_of(value, "password"),
        UserType.named(text_of(value, "userType")) or UserType.NORMAL,
        UserStatus.named(text_of(value, "userStatus")) or UserStatus.ENABLE,
    )


def acl_to_json(name: str, acl: Acl) -> dict[str, object]:
    """Return the JSON object of a user's ACL."""
    policies = [
        {"entries": [_entry_to_json(entry) for entry in entries], "policyType": kind.value}
        for kind, entries in ((PolicyType.CUSTOM, acl.custom), (PolicyType.DEFAULT, acl.default))
        if entries
    ]
    return {"policies": policies, "subject": SUBJECT_PREFIX + name}


def policies_from_json(value: JsonObject) -> Policies:
    """Decode the policies of an ACL; unknown actions are ignored, as in Apache's broker.

    Raises:
        AccountRefused: There are no policies, or an entry has no valid resource or decision.
    """
    policies: Policies = {}
    objects = _objects(value.get("policies"))
    if not objects:
        raise AccountRefused(_INVALID)
    for policy in objects:
        kind = PolicyType.named(text_of(policy, "policyType")) or PolicyType.CUSTOM
        if entries := [_entry_from_json(e) for e in _objects(policy.get("entries"))]:
            policies.setdefault(kind, []).extend(entries)
    return policies


def subject_name(subject: str) -> str:
    """Return the user name in `User:name`.

    Raises:
        AccountRefused: The subject is not a user.
    """
    kind, separator, name = subject.partition(":")
    if not separator or kind.lower() != "user":
        raise AccountRefused("The subject is invalid; use User:NAME.")
    return name


def _entry_to_json(entry: PolicyEntry) -> dict[str, object]:
    value: dict[str, object] = {
        "actions": [action.value for action in entry.actions],
        "decision": entry.decision.value,
        "resource": entry.resource.key,
    }
    if entry.networks:
        value["sourceIps"] = list(entry.networks)
    return value


def _entry_from_json(value: JsonObject) -> PolicyEntry:
    resource = Resource.parse(text_of(value, "resource"))
    if resource is None:
        raise AccountRefused("The resource is null.")
    if (decision := Decision.named(text_of(value, "decision"))) is None:
        raise AccountRefused("The decision is null or illegal.")
    actions = [Action.named(name) for name in _texts(value.get("actions"))]
    return PolicyEntry(
        resource,
        tuple(action for action in actions if action is not None),
        decision,
        tuple(_texts(value.get("sourceIps"))),
    )


def text_of(value: JsonObject, key: str) -> str:
    """Return a text member of an object, empty if it is absent or no text."""
    text = value.get(key)
    return text if isinstance(text, str) else ""


def _texts(value: object) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


def _objects(value: object) -> list[JsonObject]:
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []
