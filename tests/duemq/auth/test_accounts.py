"""Accounts: changes, their limits, and the JSON that mqadmin reads."""

from __future__ import annotations

import pytest

from duemq.auth.accounts import AccountRefused, Accounts
from duemq.auth.model import (
    Action,
    Decision,
    PolicyEntry,
    PolicyType,
    Resource,
    ResourceType,
    User,
    UserStatus,
    UserType,
)

ORDERS = Resource(ResourceType.TOPIC, "orders")
OTHER = Resource(ResourceType.TOPIC, "other")


def entry(resource: Resource = ORDERS, decision: Decision = Decision.ALLOW) -> PolicyEntry:
    return PolicyEntry(resource, (Action.PUB,), decision)


def accounts() -> Accounts:
    return Accounts({"alice": User("alice", "secret")})


def test_a_user_is_created_changed_and_deleted() -> None:
    table = Accounts()
    table.create_user(User("bob", "first", UserType.SUPER))
    assert table.is_super("bob")
    table.update_user("bob", password=" ", status=UserStatus.DISABLE)
    assert table.user("bob") == User("bob", "first", UserType.SUPER, UserStatus.DISABLE)
    table.delete_user("bob")
    table.delete_user("bob")
    assert table.users() == []
    assert table.version == 4


@pytest.mark.parametrize(
    ("user", "remark"),
    [
        (User("", "secret"), "username can not be blank"),
        (User("bob", " "), "password can not be blank"),
        (User("alice", "secret"), "The user is existed"),
        (User("a\nb", "secret"), "printable"),
    ],
)
def test_invalid_users_are_refused(user: User, remark: str) -> None:
    with pytest.raises(AccountRefused, match=remark):
        accounts().create_user(user)


def test_an_unknown_user_is_not_changed() -> None:
    with pytest.raises(AccountRefused, match="not exist"):
        accounts().update_user("bob", password="new")


def test_an_entry_replaces_the_one_for_its_resource() -> None:
    table = accounts()
    table.merge_acl("alice", {PolicyType.CUSTOM: [entry(), entry(OTHER)]})
    table.merge_acl("alice", {PolicyType.CUSTOM: [entry(decision=Decision.DENY)]})
    acl = table.acl("alice")
    assert acl is not None
    assert acl.custom == (entry(decision=Decision.DENY), entry(OTHER))


def test_the_last_entry_removes_the_acl() -> None:
    table = accounts()
    table.merge_acl("alice", {PolicyType.CUSTOM: [entry()], PolicyType.DEFAULT: [entry(OTHER)]})
    table.delete_acl("alice", ORDERS)
    assert table.acl("alice") is not None
    table.delete_acl("alice", OTHER, PolicyType.DEFAULT)
    assert table.acl("alice") is None
    with pytest.raises(AccountRefused, match="acl is not exist"):
        table.delete_acl("alice")


@pytest.mark.parametrize(
    ("policies", "remark"),
    [
        ({}, "policies is empty"),
        ({PolicyType.CUSTOM: []}, "entries is empty"),
        ({PolicyType.CUSTOM: [PolicyEntry(ORDERS, (), Decision.ALLOW)]}, "actions is empty"),
        ({PolicyType.CUSTOM: [PolicyEntry(ORDERS, (Action.ANY,), Decision.ALLOW)]}, "be Any"),
        (
            {PolicyType.CUSTOM: [PolicyEntry(ORDERS, (Action.PUB,), Decision.ALLOW, ("x",))]},
            "ip is invalid",
        ),
    ],
)
def test_invalid_entries_are_refused(
    policies: dict[PolicyType, list[PolicyEntry]], remark: str
) -> None:
    with pytest.raises(AccountRefused, match=remark):
        accounts().merge_acl("alice", policies)
