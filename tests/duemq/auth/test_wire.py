"""Users and ACLs as JSON."""

from __future__ import annotations

import pytest

from duemq.auth.accounts import AccountRefused
from duemq.auth.model import Acl, PolicyType, User, UserStatus, UserType
from duemq.auth.wire import (
    acl_to_json,
    policies_from_json,
    subject_name,
    user_from_json,
    user_to_json,
)

ENTRY = {"resource": "Topic:orders", "actions": ["Pub", "Sub"], "decision": "Allow"}


def test_a_user_survives_json() -> None:
    user = User("alice", "secret", UserType.SUPER, UserStatus.DISABLE)
    assert user_from_json(user_to_json(user)) == user
    assert user_from_json({"password": "x"}, "bob") == User("bob", "x")


def test_an_acl_survives_json() -> None:
    entries = [ENTRY, ENTRY | {"resource": "*", "sourceIps": ["10.0.0.0/8"], "decision": "Deny"}]
    policies = policies_from_json({"policies": [{"policyType": "default", "entries": entries}]})
    acl = Acl(default=tuple(policies[PolicyType.DEFAULT]))
    written = acl_to_json("alice", acl)
    assert written["subject"] == "User:alice"
    assert policies_from_json(written) == policies


def test_unknown_actions_are_ignored() -> None:
    value = {"policies": [{"entries": [ENTRY | {"actions": ["Pub", "Fly", 3]}]}]}
    [found] = policies_from_json(value)[PolicyType.CUSTOM]
    assert [action.value for action in found.actions] == ["Pub"]


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"policies": "all"},
        {"policies": [{"entries": [ENTRY | {"resource": "orders"}]}]},
        {"policies": [{"entries": [ENTRY | {"decision": "Maybe"}]}]},
    ],
)
def test_malformed_acls_are_refused(value: dict[str, object]) -> None:
    with pytest.raises(AccountRefused):
        policies_from_json(value)


def test_a_subject_is_a_user() -> None:
    assert subject_name("User:alice") == "alice"
    for subject in ("alice", "Group:alice", ""):
        with pytest.raises(AccountRefused):
            subject_name(subject)
