"""Edits of ACL 1.0 files, on decoded YAML.

As in Apache 4.9.7, a changed account moves to the end, `dataVersion` is incremented, and comments
are lost.

Source: acl/plain/PlainPermissionManager.updateAccessConfig, deleteAccessConfig,
updateGlobalWhiteAddrsConfig; acl/common/Permission.checkResourcePerms of Apache 4.9.7.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import Struct

from duemq.auth.accounts import AccountRefused
from duemq.auth.plain_rules import KEY_CHARACTERS_MIN, PERMISSIONS
from duemq_common.data_version import DataVersion

Yaml = Mapping[str, object]
ACCOUNTS, ADDRESSES, VERSION = "accounts", "globalWhiteRemoteAddresses", "dataVersion"
_FORMAT_ERROR: Final = (
    "Parse Resource format error for {}.\n"
    "The expected resource format is 'Res=Perm'. For example: topicA=SUB"
)
_PERMISSION_ERROR: Final = (
    "Parse resource permission error for {}.\n"
    "The expected permissions are 'SUB' or 'PUB' or 'SUB|PUB' or 'PUB|SUB'."
)
_SHORT: Final = "The accessKey={} and secretKey={} cannot be null and length should longer than 6"


class AccountChange(Struct, frozen=True, kw_only=True):
    """New values of an account; None: the old value stays.

    Attributes:
        topics, groups: Permissions such as `orders=PUB|SUB`.
    """

    access_key: str | None
    secret: str | None
    white_address: str | None = None
    admin: bool = False
    default_topic: str | None = None
    default_group: str | None = None
    topics: tuple[str, ...] | None = None
    groups: tuple[str, ...] | None = None

    def check(self) -> None:
        """Raise AccountRefused with Apache's text if a value is invalid."""
        key, secret = self.access_key, self.secret
        if min(len(key or ""), len(secret or "")) < KEY_CHARACTERS_MIN:
            raise AccountRefused(_SHORT.format(shown(key), shown(secret)))
        for item in (*(self.topics or ()), *(self.groups or ())):
            check_permission(item)

    def members(self) -> dict[str, object]:
        """Return the changed members of the account."""
        values: dict[str, object] = {
            "accessKey": self.access_key,
            "secretKey": self.secret,
            "whiteRemoteAddress": self.white_address,
            "admin": self.admin,
            "defaultTopicPerm": self.default_topic or None,
            "defaultGroupPerm": self.default_group or None,
            "topicPerms": None if self.topics is None else list(self.topics),
            "groupPerms": None if self.groups is None else list(self.groups),
        }
        return {name: value for name, value in values.items() if value is not None}


def shown(text: str | None) -> str:
    """Return a text as Java formats it."""
    return "null" if text is None else text


def check_permission(item: str) -> None:
    """Raise AccountRefused if an item is not NAME=PERMISSION."""
    parts = [part for part in item.split("=") if part]
    if len(parts) != 2:
        raise AccountRefused(_FORMAT_ERROR.format(item))
    if parts[1].strip() not in PERMISSIONS:
        raise AccountRefused(_PERMISSION_ERROR.format(item))


def with_account(top: Yaml, change: AccountChange, now_ms: int) -> Yaml:
    """Return the file with an account added or changed."""
    accounts = accounts_of(top)
    old = next((a for a in accounts if key_of(a) == change.access_key), {})
    kept = [account for account in accounts if account is not old]
    new = {**old, **change.members()}
    return {**top, ACCOUNTS: [*kept, new], VERSION: next_version(top, now_ms)}


def without_account(top: Yaml, access_key: str, now_ms: int) -> Yaml:
    """Return the file without an account."""
    kept = [account for account in accounts_of(top) if key_of(account) != access_key]
    return {**top, ACCOUNTS: kept, VERSION: next_version(top, now_ms)}


def with_addresses(top: Yaml, addresses: Iterable[str], now_ms: int) -> Yaml:
    """Return the file with new globalWhiteRemoteAddresses."""
    return {**top, ADDRESSES: list(addresses), VERSION: next_version(top, now_ms)}


def accounts_of(top: Yaml) -> list[Yaml]:
    """Return the accounts of a file."""
    accounts = top.get(ACCOUNTS)
    return (
        [account for account in accounts if isinstance(account, dict)]
        if isinstance(accounts, list)
        else []
    )


def key_of(account: Yaml) -> str:
    """Return the access key of an account, which YAML may decode as a number."""
    return str(account.get("accessKey"))


def version_of(top: Yaml) -> DataVersion | None:
    """Return the version of a file, or None."""
    version = top.get(VERSION)
    if not isinstance(version, list) or not version:
        return None
    try:
        return DataVersion.from_json(version[0])
    except ValueError:
        return None


def next_version(top: Yaml, now_ms: int) -> list[dict[str, int]]:
    """Return the member `dataVersion` after another change."""
    version = (version_of(top) or DataVersion()).next(now_ms)
    return [{"counter": version.counter, "timestamp": version.timestamp_ms}]
