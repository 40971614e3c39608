"""Accounts of a broker: users and their ACLs, changed by requests 3001 to 3010.

A change is stored before it takes effect, so a failed write changes nothing. If only the last sync
fails, the file has the change, and it takes effect. Remarks are those of Apache 5.3.3's broker.

Source: auth/authentication/manager/AuthenticationMetadataManagerImpl,
auth/authorization/manager/AuthorizationMetadataManagerImpl of Apache 5.3.3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeVar

from msgspec.structs import replace

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
    is_network,
)
from duemq.auth.policies import Policies
from duemq.auth.secret_file import NotSynced
from duemq.auth.signature import ACCESS_KEY_CHARACTERS_MAX

USERS_MAX: Final = 10_000
ENTRIES_MAX: Final = 10_000  # entries per ACL
SUBJECT_PREFIX: Final = "User:"
T = TypeVar("T")


Users = Mapping[str, User]
Acls = Mapping[str, Acl]


class AccountRefused(Exception):
    """Refused change of accounts; the text is the remark of the response."""


class Accounts:
    """Users by name, and the ACL of each.

    Args:
        users, acls: Users and their ACLs, by user name.
        store: Stores all users and ACLs before a change takes effect; may raise.

    Attributes:
        version: Number of changes; earlier decisions are outdated.
    """

    def __init__(
        self,
        users: Users | None = None,
        acls: Acls | None = None,
        store: Callable[[Users, Acls], None] = lambda users, acls: None,
    ) -> None:
        self._users, self._acls = dict(users or {}), dict(acls or {})
        self._store = store
        self._policies: dict[str, Policies] = {}  # cache
        self.version = 0

    def __len__(self) -> int:
        return len(self._users)

    def user(self, name: str) -> User | None:
        """Return a user, or None."""
        return self._users.get(name)

    def acl(self, name: str) -> Acl | None:
        """Return the ACL of a user; None if it has none."""
        return self._acls.get(name)

    def policies(self, name: str) -> Policies:
        """Return the policies of a user."""
        cached = self._policies.get(name)
        if cached is None:
            cached = self._policies[name] = Policies(self._acls.get(name, Acl()))
        return cached

    def users(self, part: str = "") -> list[User]:
        """Return the users whose names contain `part`, by name."""
        return [user for name, user in sorted(self._users.items()) if part in name]

    def is_super(self, name: str) -> bool:
        """Return whether a user has every permission."""
        user = self._users.get(name)
        return user is not None and user.type is UserType.SUPER

    def create_user(self, user: User) -> None:
        """Add a user.

        Raises:
            AccountRefused: The name or the password is blank or too long, or the user exists.
        """
        check_name(user.name)
        if not user.password.strip():
            raise AccountRefused("password can not be blank")
        if user.name in self._users:
            raise AccountRefused("The user is existed")
        if len(self._users) >= USERS_MAX:
            raise AccountRefused(f"there are {USERS_MAX} users already; delete unused ones")
        self._change({**self._users, user.name: user}, self._acls)

    def update_user(
        self,
        name: str,
        password: str | None = None,
        type: UserType | None = None,
        status: UserStatus | None = None,
    ) -> None:
        """Change a user; None keeps a value.

        Raises:
            AccountRefused: There is no such user.
        """
        check_name(name)
        old = self._existing(name)
        new = replace(
            old,
            password=password if password and password.strip() else old.password,
            type=type or old.type,
            status=status or old.status,
        )
        self._change({**self._users, name: new}, self._acls)

    def delete_user(self, name: str) -> None:
        """Remove a user and its ACL, if the user exists."""
        check_name(name)
        self._change(_without(self._users, name), _without(self._acls, name))

    def merge_acl(self, name: str, policies: Mapping[PolicyType, Iterable[PolicyEntry]]) -> None:
        """Add entries to the policies of a user; a new entry replaces one with the same resource.

        Raises:
            AccountRefused: There is no such user, or an entry is invalid.
        """
        if not policies:
            raise AccountRefused("The policies is empty.")
        new_entries = {kind: tuple(entries) for kind, entries in policies.items()}
        for entries in new_entries.values():
            check_entries(entries)
        if name not in self._users:
            raise AccountRefused(f"The subject of {SUBJECT_PREFIX}{name} is not exist.")
        old = self._acls.get(name, Acl())
        acl = Acl(
            _merged(old.custom, new_entries.get(PolicyType.CUSTOM, ())),
            _merged(old.default, new_entries.get(PolicyType.DEFAULT, ())),
        )
        if len(acl.custom) + len(acl.default) > ENTRIES_MAX:
            raise AccountRefused(f"an ACL has at most {ENTRIES_MAX} entries; use prefixes")
        self._change(self._users, {**self._acls, name: acl})

    def delete_acl(
        self, name: str, resource: Resource | None = None, kind: PolicyType = PolicyType.CUSTOM
    ) -> None:
        """Remove the ACL of a user, or one entry of it.

        Raises:
            AccountRefused: The user, or its ACL, does not exist.
        """
        if name not in self._users:
            raise AccountRefused("The subject is not exist.")
        if (old := self._acls.get(name)) is None:
            raise AccountRefused("The acl is not exist.")
        custom, default = old.custom, old.default
        if kind is PolicyType.CUSTOM:
            custom = tuple(entry for entry in custom if entry.resource != resource)
        else:
            default = tuple(entry for entry in default if entry.resource != resource)
        if resource is None or not (custom or default):
            self._change(self._users, _without(self._acls, name))
        else:
            self._change(self._users, {**self._acls, name: Acl(custom, default)})

    def _change(self, users: Users, acls: Acls) -> None:
        try:
            self._store(users, acls)
        except NotSynced:  # the file has the change, so a restart would apply it
            self._use(users, acls)
            raise
        self._use(users, acls)

    def _use(self, users: Users, acls: Acls) -> None:
        self._users, self._acls = dict(users), dict(acls)
        self._policies.clear()
        self.version += 1

    def _existing(self, name: str) -> User:
        if (user := self._users.get(name)) is None:
            raise AccountRefused("The user is not exist")
        return user


def _without(table: Mapping[str, T], name: str) -> dict[str, T]:
    return {key: value for key, value in table.items() if key != name}


def check_name(name: str) -> None:
    """Raise AccountRefused if a user name is invalid."""
    if not name.strip():
        raise AccountRefused("username can not be blank")
    if len(name) > ACCESS_KEY_CHARACTERS_MAX or not name.isprintable():
        text = f"a username has at most {ACCESS_KEY_CHARACTERS_MAX} printable characters"
        raise AccountRefused(text)


def check_entries(entries: tuple[PolicyEntry, ...]) -> None:
    """Raise AccountRefused if an entry of a policy is invalid."""
    if not entries:
        raise AccountRefused("The policy entries is empty.")
    for entry in entries:
        if not entry.actions:
            raise AccountRefused("The actions is empty.")
        if Action.ANY in entry.actions:
            raise AccountRefused("The actions can not be Any.")
        for network in entry.networks:
            if not network.strip():
                raise AccountRefused("The source ip is empty.")
            if not is_network(network):
                raise AccountRefused("The source ip is invalid.")
        assert isinstance(entry.decision, Decision)


def _merged(old: tuple[PolicyEntry, ...], new: tuple[PolicyEntry, ...]) -> tuple[PolicyEntry, ...]:
    """Return the entries merged by resource; a new entry takes the position of the old one."""
    entries = {entry.resource: entry for entry in old}
    entries.update({entry.resource: entry for entry in new})
    return tuple(entries.values())
