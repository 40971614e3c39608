"""Accounts and permissions of ACL 1.0, as in `plain_acl.yml`.

    globalWhiteRemoteAddresses: [10.0.0.*]
    accounts:
      - {accessKey: orders1, secretKey: secret12, whiteRemoteAddress: "", admin: false,
         defaultTopicPerm: DENY, defaultGroupPerm: SUB, topicPerms: [orders=PUB|SUB],
         groupPerms: [billing=SUB]}

The permission of a group is stored under its retry topic. Refusal texts are Apache's. Source:
acl/plain/PlainPermissionManager, acl/common/Permission of Apache 4.9.7.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import Struct, field

from duemq.auth.plain_addresses import Matcher, matcher
from duemq_common.topics import RETRY_PREFIX

DENY, PUB, SUB = 1, 4, 8
KEY_CHARACTERS_MIN: Final = 7
ACCOUNTS_MAX: Final = 10_000
PERMISSIONS: Final = {
    "DENY": DENY,
    "PUB": PUB,
    "SUB": SUB,
    "PUB|SUB": PUB | SUB,
    "SUB|PUB": PUB | SUB,
}
_KEYS: Final = frozenset(
    {
        "accessKey",
        "secretKey",
        "whiteRemoteAddress",
        "admin",
        "defaultTopicPerm",
        "defaultGroupPerm",
        "topicPerms",
        "groupPerms",
    }
)
_TOP_KEYS: Final = frozenset({"globalWhiteRemoteAddresses", "accounts", "date", "dataVersion"})


class PlainRefused(Exception):
    """Refusal of a request; the text is that of Apache's AclException."""


class PlainAccount(Struct, frozen=True):
    """One account.

    Attributes:
        is_free: Returns whether a client address needs neither signature nor permission.
        permissions: Permissions by topic and by retry topic of a group; empty: the defaults.
    """

    access_key: str
    secret: str
    is_free: Matcher
    admin: bool
    default_topic: int
    default_group: int
    permissions: Mapping[str, int]

    @property
    def may_publish(self) -> bool:
        """Whether the account may send to some topic."""
        owned = (self.default_topic, *self.permissions.values())
        return self.admin or any(each & PUB and not each & DENY for each in owned)

    def check(self, code: int, needed: Mapping[str, int], *, needs_admin: bool = False) -> None:
        """Raise PlainRefused if the account lacks a permission.

        Args:
            needed: Permissions by topic or retry topic.
            needs_admin: Whether the request requires an administrator.
        """
        if needs_admin and not self.admin:
            raise PlainRefused(
                f"Need admin permission for request code={code}, but accessKey={self.access_key} "
                "is not"
            )
        if self.admin and not self.permissions:
            return
        for resource, permission in needed.items():
            is_group = resource.startswith(RETRY_PREFIX)
            default = self.default_group if is_group else self.default_topic
            owned = self.permissions.get(resource, default)
            if owned & DENY or not owned & permission:
                shown = resource.removeprefix(RETRY_PREFIX) if is_group else resource
                kind = "group" if is_group else "topic"
                raise PlainRefused(f"No default permission for {kind}:{shown}")


class PlainRules(Struct, frozen=True):
    """Accounts of all files."""

    free: tuple[Matcher, ...] = ()
    accounts: Mapping[str, PlainAccount] = field(default_factory=dict)

    def account(self, access_key: str) -> PlainAccount | None:
        """Return an account, or None."""
        return self.accounts.get(access_key)

    def is_free(self, address: str) -> bool:
        """Return whether requests from an address are not checked."""
        return any(matches(address) for matches in self.free)


def rules_of(files: Iterable[tuple[str, object]]) -> PlainRules:
    """Return the rules in decoded files; for duplicate accounts, the first file counts.

    Args:
        files: File names, for errors, and decoded YAML.

    Raises:
        ValueError: A file is invalid; the text has file and member.
    """
    free: list[Matcher] = []
    accounts: dict[str, PlainAccount] = {}
    for name, value in files:
        try:
            top = _mapping(value, "the file", _TOP_KEYS)
            addresses = _list(top.get("globalWhiteRemoteAddresses"), "globalWhiteRemoteAddresses")
            free += [matcher(str(text)) for text in addresses]
            for number, item in enumerate(_list(top.get("accounts"), "accounts"), 1):
                account = _account(_mapping(item, f"account {number}", _KEYS), f"account {number}")
                accounts.setdefault(account.access_key, account)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
    if len(accounts) > ACCOUNTS_MAX:
        raise ValueError(f"{len(accounts)} accounts; the limit is {ACCOUNTS_MAX}")
    return PlainRules(tuple(free), accounts)


def _account(value: Mapping[str, object], where: str) -> PlainAccount:
    key, secret = (_text(value, name, where) for name in ("accessKey", "secretKey"))
    if len(key) < KEY_CHARACTERS_MIN or len(secret) < KEY_CHARACTERS_MIN:
        raise ValueError(
            f"{where}: accessKey and secretKey must have at least {KEY_CHARACTERS_MIN} characters"
        )
    admin = value.get("admin", False)
    if not isinstance(admin, bool):
        raise ValueError(f"{where}: admin must be true or false")
    permissions = dict(_permissions(value, "groupPerms", where, RETRY_PREFIX))
    permissions |= _permissions(value, "topicPerms", where, "")
    return PlainAccount(
        key,
        secret,
        matcher(_text(value, "whiteRemoteAddress", where)),
        admin,
        _permission(_text(value, "defaultTopicPerm", where) or "DENY", where),
        _permission(_text(value, "defaultGroupPerm", where) or "DENY", where),
        permissions,
    )


def _permissions(
    value: Mapping[str, object], member: str, where: str, prefix: str
) -> dict[str, int]:
    permissions = {}
    for item in _list(value.get(member), f"{where}: {member}"):
        name, equals, permission = str(item).partition("=")
        if not equals or not name.strip():
            raise ValueError(f"{where}: {member}: {item!r} is not NAME=PUB, SUB, PUB|SUB or DENY")
        permissions[prefix + name.strip()] = _permission(permission, where)
    return permissions


def _permission(text: str, where: str) -> int:
    """Parse a permission; Apache's broker treats an unknown word as DENY."""
    word = text.strip()
    if word not in PERMISSIONS:
        raise ValueError(f"{where}: {word!r} is not PUB, SUB, PUB|SUB or DENY")
    return PERMISSIONS[word]


def _mapping(value: object, where: str, keys: frozenset[str]) -> Mapping[str, object]:
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise ValueError(f"{where} is not a mapping")
    if unknown := sorted(value.keys() - keys):
        raise ValueError(f"{where}: {', '.join(unknown)} is unknown")
    return value


def _list(value: object, where: str) -> list[object]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise ValueError(f"{where} is not a list")
    return value


def _text(value: Mapping[str, object], key: str, where: str) -> str:
    text = value.get(key)
    if text is None:
        return ""
    if isinstance(text, bool | int | float | str):
        return str(text)
    raise ValueError(f"{where}: {key} is not text")
