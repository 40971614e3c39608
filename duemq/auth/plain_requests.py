"""Account requests of ACL 1.0 (codes 50 to 54), as sent by mqadmin of Apache 4.9.7.

A change is validated, written to disk and activated before the response. Apache's broker accepts
these requests from every account, and writes files that it cannot load; DueMQ requires an
administrator and refuses invalid changes.

Source: AdminBrokerProcessor.updateAndCreateAccessConfig to getBrokerClusterAclConfig of Apache
4.9.7.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

from duemq.auth.account_requests import not_synced
from duemq.auth.accounts import AccountRefused
from duemq.auth.plain_edits import (
    ADDRESSES,
    AccountChange,
    Yaml,
    accounts_of,
    key_of,
    shown,
    version_of,
    with_account,
    with_addresses,
    without_account,
)
from duemq.auth.plain_files import PlainFiles
from duemq.auth.secret_file import NotSynced
from duemq.net import fields
from duemq.net.dispatcher import Handler
from duemq_common.clock import Clock
from duemq_common.codes import RequestCode, ResponseCode
from duemq_common.errors import RequestError
from duemq_common.existence import exists
from duemq_common.request import Request, Response

UPDATE_FAILED = ResponseCode.UPDATE_AND_CREATE_ACL_CONFIG_FAILED
DELETE_FAILED = ResponseCode.DELETE_ACL_CONFIG_FAILED
ADDRESSES_FAILED = ResponseCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG_FAILED
_MEMBERS = ("accessKey", "secretKey", "whiteRemoteAddress", "defaultTopicPerm", "defaultGroupPerm")
_NOT_DELETED = "The accesskey[{}] corresponding to accessConfig has been deleted failed."
_NOT_UPDATED = "The globalWhiteAddresses[{}] has been updated failed."
Edit = Callable[[], tuple[Path, Yaml]]


class BrokerNames(Struct, frozen=True, kw_only=True):
    """Names of the broker in the response to 52."""

    cluster: str
    broker: str
    address: str


class PlainRequests:
    """Handlers of account requests of ACL 1.0."""

    def __init__(self, files: PlainFiles, names: BrokerNames, clock: Clock) -> None:
        self._files, self._names, self._clock = files, names, clock
        self._changing = asyncio.Lock()

    def handlers(self) -> dict[int, Handler]:
        """Return handlers by request code."""
        return {
            RequestCode.UPDATE_AND_CREATE_ACL_CONFIG: self.update_account,
            RequestCode.DELETE_ACL_CONFIG: self.delete_account,
            RequestCode.GET_BROKER_CLUSTER_ACL_INFO: self.versions,
            RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: self.update_addresses,
            RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG: self.accounts,
        }

    async def update_account(self, request: Request) -> Response:
        """Add an account to the default file, or change it in its file (50)."""
        change = account_change(request)

        def edit() -> tuple[Path, Yaml]:
            change.check()
            path = self._file_of(change.access_key) or self._files.default
            return path, with_account(self._value(path), change, self._clock.now_ms())

        return await self._change(edit, UPDATE_FAILED)

    async def delete_account(self, request: Request) -> Response:
        """Remove an account (51)."""
        key = request.fields.get("accessKey")

        def edit() -> tuple[Path, Yaml]:
            path = self._file_of(key)
            if path is None or key is None:
                raise AccountRefused(_NOT_DELETED.format(shown(key)))
            return path, without_account(self._value(path), key, self._clock.now_ms())

        return await self._change(edit, DELETE_FAILED)

    async def update_addresses(self, request: Request) -> Response:
        """Replace globalWhiteRemoteAddresses in one file (53)."""
        text = request.fields.get("globalWhiteAddrs")
        named = request.fields.get("aclFileFullPath") or str(self._files.default)

        def edit() -> tuple[Path, Yaml]:
            paths = {os.path.normpath(path): path for path in self._files.values}
            path = paths.get(os.path.normpath(named))
            if path is None or text is None:
                raise AccountRefused(_NOT_UPDATED.format(shown(text)))
            value = self._value(path)
            return path, with_addresses(value, split(text), self._clock.now_ms())

        return await self._change(edit, ADDRESSES_FAILED)

    def versions(self, request: Request) -> Response:
        """Return the version of each file (52)."""
        versions = {str(path): self._version(path) for path in self._files.values}
        header = {
            "allAclFileVersion": compact(versions),
            "brokerAddr": self._names.address,
            "brokerName": self._names.broker,
            "clusterName": self._names.cluster,
            "version": compact(self._version(self._files.default)),
        }
        return Response(fields=header)

    def accounts(self, request: Request) -> Response:
        """Return accounts and addresses of all files, including secrets (54)."""
        accounts: dict[str, dict[str, object]] = {}
        addresses: list[str] = []
        for path in self._files.values:
            value = self._value(path)
            free = value.get(ADDRESSES)
            addresses += map(str, free) if isinstance(free, list) else ()
            for account in accounts_of(value):
                accounts.setdefault(key_of(account), listed(account))
        body = {"globalWhiteAddrs": addresses, "plainAccessConfigs": list(accounts.values())}
        return Response(body=compact(body).encode())

    async def _change(self, edit: Edit, failed: int) -> Response:
        """Write and activate the result of `edit`; one change at a time.

        Raises:
            RequestError: With code `failed`; nothing has changed, or the text states that a power
                failure may undo the change.
        """
        async with self._changing:
            try:
                change = self._files.planned(*edit())
                await asyncio.to_thread(change.write)
            except AccountRefused as refusal:
                raise RequestError(failed, str(refusal)) from None
            except NotSynced as error:
                self._files.use(change)
                raise RequestError(failed, not_synced(error)) from error
            except OSError as error:
                file = error.filename or change.path
                text = f"{file} cannot be written, nothing was changed: {error.strerror}"
                raise RequestError(failed, text) from error
            self._files.use(change)
        return Response()

    def _value(self, path: Path) -> Yaml:
        value = self._files.values.get(path)
        return value if isinstance(value, dict) else {}

    def _file_of(self, access_key: str | None) -> Path | None:
        for path in self._files.values:
            if any(key_of(a) == access_key for a in accounts_of(self._value(path))):
                return path
        return None

    def _version(self, path: Path) -> dict[str, int]:
        version = version_of(self._value(path))
        if version is not None:
            return {"counter": version.counter, "timestamp": version.timestamp_ms}
        changed_ns = path.stat().st_mtime_ns if exists(path) else 0
        return {"counter": 0, "timestamp": changed_ns // 1_000_000}


def account_change(request: Request) -> AccountChange:
    """Return the change in a request (50)."""
    key, secret, address, topic, group = (request.fields.get(name) for name in _MEMBERS)
    return AccountChange(
        access_key=key,
        secret=secret,
        white_address=address,
        admin=fields.boolean(request, "admin"),
        default_topic=topic,
        default_group=group,
        topics=_items(request, "topicPerms"),
        groups=_items(request, "groupPerms"),
    )


def listed(account: Yaml) -> dict[str, object]:
    """Return an account in the form of PlainAccessConfig, without absent members."""
    value: dict[str, object] = {"admin": account.get("admin") is True}
    for name in _MEMBERS:
        if account.get(name) is not None:
            value[name] = str(account[name])
    for name in ("topicPerms", "groupPerms"):
        if isinstance(items := account.get(name), list):
            value[name] = [str(item) for item in items]
    return dict(sorted(value.items()))


def compact(value: object) -> str:
    """Return compact JSON, like fastjson's."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def split(text: str) -> list[str]:
    """Split at commas as Java does, without empty parts at the end."""
    return text.rstrip(",").split(",") if text.strip(",") or not text else []


def _items(request: Request, name: str) -> tuple[str, ...] | None:
    text = request.fields.get(name)
    return None if text is None else tuple(split(text))
