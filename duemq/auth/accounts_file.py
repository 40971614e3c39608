"""Accounts file: all users and ACLs as JSON, replaced as a whole.

    {"format": 1, "users": [{"username": ...}, ...], "acls": [{"subject": "User:...", ...}, ...]}

The file contains secrets and permissions. A broker therefore starts only if other users of the
machine have no access to the file, and every member is known and valid. There is no backup, since
an old backup could restore a deleted user.

Apache's broker stores the same objects in RocksDB, in `config/users` and `config/acls`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from duemq.auth.accounts import AccountRefused, Accounts, Acls, Users, check_entries, check_name
from duemq.auth.model import Acl, PolicyType, User, UserStatus, UserType
from duemq.auth.secret_file import REPAIR, read_secrets, write_secrets
from duemq.auth.wire import (
    acl_to_json,
    policies_from_json,
    subject_name,
    user_from_json,
    user_to_json,
)
from duemq_common import config_sums
from duemq_common.errors import CorruptStore

ACCOUNTS_FILE: Final = "duemq.accounts.json"
FORMAT: Final = 1
FILE_BYTES_MAX: Final = 64 << 20
_USER_KEYS: Final = {"username", "password", "userType", "userStatus"}
_ENTRY_KEYS: Final = {"resource", "actions", "decision", "sourceIps"}


def open_accounts(path: Path) -> Accounts:
    """Return the accounts of a file, to which later changes are written; empty without a file.

    Raises:
        CorruptStore: The file cannot be used.
    """
    users, acls = read_accounts(path)
    return Accounts(users, acls, lambda users, acls: write_accounts(path, users, acls))


def read_accounts(path: Path) -> tuple[Users, Acls]:
    """Return users and ACLs by user name; empty without a file.

    Raises:
        CorruptStore: The file cannot be used.
    """
    try:
        data = read_secrets(path, FILE_BYTES_MAX)
    except FileNotFoundError:
        return {}, {}
    try:
        return decode(config_sums.checked(path, data))
    except json.JSONDecodeError as error:
        reason = f"line {error.lineno}, column {error.colno}: {error.msg}"
        raise CorruptStore(path, error.pos, reason, REPAIR) from error
    except (ValueError, RecursionError, AccountRefused) as error:
        raise CorruptStore(path, 0, str(error), REPAIR) from error


def write_accounts(path: Path, users: Users, acls: Acls) -> None:
    """Replace the file atomically and sync it.

    Raises:
        OSError: The write failed; the old file is unchanged.
        NotSynced: The file was replaced.
    """
    data = encode(users, acls)
    write_secrets(path, data)
    config_sums.record(path, data)


def encode(users: Users, acls: Acls) -> bytes:
    """Return the bytes of the file."""
    value = {
        "format": FORMAT,
        "users": [user_to_json(user) for _, user in sorted(users.items())],
        "acls": [acl_to_json(name, acl) for name, acl in sorted(acls.items())],
    }
    return json.dumps(value, indent=2).encode() + b"\n"


def decode(data: bytes) -> tuple[Users, Acls]:
    """Return the users and ACLs of a file's bytes.

    Raises:
        ValueError, AccountRefused: A member is missing, unknown or invalid.
    """
    value = _object(json.loads(data.decode(), object_pairs_hook=_unique), "the file")
    _check_keys(value, {"format", "users", "acls"}, "the file")
    if value["format"] != FORMAT:
        raise ValueError(f"format {value['format']} is unknown; this version reads {FORMAT}")
    users: dict[str, User] = {}
    for number, item in enumerate(_list(value["users"], "users"), 1):
        user = _user(_object(item, f"user {number}"), f"user {number}")
        if user.name in users:
            raise ValueError(f"user {number}: {user.name} occurs twice")
        users[user.name] = user
    acls: dict[str, Acl] = {}
    for number, item in enumerate(_list(value["acls"], "acls"), 1):
        name, acl = _acl(_object(item, f"ACL {number}"), f"ACL {number}")
        if name in acls or name not in users:
            reason = "occurs twice" if name in acls else "is not a user"
            raise ValueError(f"ACL {number}: {name} {reason}")
        acls[name] = acl
    return users, acls


def _user(value: Mapping[str, object], where: str) -> User:
    _check_keys(value, _USER_KEYS, where)
    for key, kind in (("userType", UserType), ("userStatus", UserStatus)):
        if not isinstance(value[key], str) or kind.named(str(value[key])) is None:
            raise ValueError(f"{where}: {key} is {value[key]!r}")
    user = user_from_json(value)
    check_name(user.name)
    if not user.password.strip():
        raise ValueError(f"{where}: the password is blank")
    return user


def _acl(value: Mapping[str, object], where: str) -> tuple[str, Acl]:
    _check_keys(value, {"subject", "policies"}, where)
    for policy in (_object(item, where) for item in _list(value["policies"], where)):
        _check_keys(policy, {"policyType", "entries"}, where)
        if PolicyType.named(str(policy["policyType"])) is None:
            raise ValueError(f"{where}: policyType is {policy['policyType']!r}")
        for entry in (_object(item, where) for item in _list(policy["entries"], where)):
            _check_keys(entry, _ENTRY_KEYS, where, optional={"sourceIps"})
            _list(entry["actions"], where)
            _list(entry.get("sourceIps", []), where)
    policies = {
        kind: tuple(policy_entries) for kind, policy_entries in policies_from_json(value).items()
    }
    for entries in policies.values():
        check_entries(entries)
    acl = Acl(policies.get(PolicyType.CUSTOM, ()), policies.get(PolicyType.DEFAULT, ()))
    if acl_to_json(subject_name(str(value["subject"])), acl) != value:
        raise ValueError(f"{where}: an action, resource or network is not in its normal form")
    return subject_name(str(value["subject"])), acl


def _check_keys(
    value: Mapping[str, object], keys: set[str], where: str, optional: set[str] | None = None
) -> None:
    missing, unknown = keys - (optional or set()) - value.keys(), value.keys() - keys
    if missing:
        raise ValueError(f"{where}: {', '.join(sorted(missing))} is missing")
    if unknown:
        raise ValueError(f"{where}: {', '.join(sorted(unknown))} is unknown")


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError("a member occurs twice")
    return members


def _object(value: object, where: str) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise ValueError(f"{where} is not an object")
    return value


def _list(value: object, where: str) -> list[object]:
    if not isinstance(value, list):
        raise ValueError(f"{where} is not a list")
    return value
