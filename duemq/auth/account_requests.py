"""Account requests (codes 3001 to 3010) of Apache 5.3.3: users and ACLs.

Secrets are returned only to super users; Apache's broker returns them to every account that may GET
the cluster. Only super users may change super users.

Source: AdminBrokerProcessor.createUser to listAcl of Apache 5.3.3.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Final

from msgspec.structs import replace

from duemq.auth.accounts import AccountRefused, Accounts
from duemq.auth.audit import AuditLog
from duemq.auth.gate import entry_of
from duemq.auth.model import Acl, PolicyEntry, PolicyType, Resource, User, UserStatus, UserType
from duemq.auth.secret_file import NotSynced
from duemq.auth.signature import ACCESS_KEY
from duemq.auth.wire import (
    JsonObject,
    acl_to_json,
    policies_from_json,
    subject_name,
    text_of,
    user_from_json,
    user_to_json,
)
from duemq.net.dispatcher import CheckedHandler, Handler
from duemq_common.codes import RequestCode, ResponseCode
from duemq_common.errors import RequestError
from duemq_common.request import Request, Response

BODY_BYTES_MAX: Final = 4 << 20
_ONLY_SUPER: Final = "The super user can only be {} by super user"


class AccountRequests:
    """Handlers of account requests.

    Args:
        audit: Audit log of requests that are refused although the account may change accounts.
    """

    def __init__(self, accounts: Accounts, audit: AuditLog) -> None:
        self._accounts, self._audit = accounts, audit

    def handlers(self) -> dict[int, Handler]:
        """Return handlers by request code."""
        methods: dict[int, Callable[[Request], Response]] = {
            RequestCode.AUTH_CREATE_USER: self.create_user,
            RequestCode.AUTH_UPDATE_USER: self.update_user,
            RequestCode.AUTH_DELETE_USER: self.delete_user,
            RequestCode.AUTH_GET_USER: self.get_user,
            RequestCode.AUTH_LIST_USER: self.list_users,
            RequestCode.AUTH_CREATE_ACL: self.merge_acl,
            RequestCode.AUTH_UPDATE_ACL: self.merge_acl,
            RequestCode.AUTH_DELETE_ACL: self.delete_acl,
            RequestCode.AUTH_GET_ACL: self.get_acl,
            RequestCode.AUTH_LIST_ACL: self.list_acls,
        }
        return {
            code: CheckedHandler(with_refusals(method, self._audit), body_bytes_max=BODY_BYTES_MAX)
            for code, method in methods.items()
        }

    def create_user(self, request: Request) -> Response:
        """Add a user (3001)."""
        name, value = _username(request), _body(request)
        user = user_from_json(value, name)
        if user.type is UserType.SUPER:
            self._require_super(request, ResponseCode.SYSTEM_ERROR, "create")
        self._accounts.create_user(user)
        return Response()

    def update_user(self, request: Request) -> Response:
        """Change a user (3002); values missing in the body are kept."""
        name, value = _username(request), _body(request)
        kind = UserType.named(text_of(value, "userType"))
        if kind is UserType.SUPER:
            self._require_super(request, ResponseCode.SYSTEM_ERROR, "update")
        old = self._accounts.user(name)
        if old is not None and old.type is UserType.SUPER:
            self._require_super(request, ResponseCode.NO_PERMISSION, "update")
        status = UserStatus.named(text_of(value, "userStatus"))
        self._accounts.update_user(name, text_of(value, "password"), kind, status)
        return Response()

    def delete_user(self, request: Request) -> Response:
        """Remove a user and its ACL (3003)."""
        name = request.fields.get("username", "")
        if (old := self._accounts.user(name)) is None:
            return Response()
        if old.type is UserType.SUPER:
            self._require_super(request, ResponseCode.NO_PERMISSION, "update")
        self._accounts.delete_user(name)
        return Response()

    def get_user(self, request: Request) -> Response:
        """Return a user (3004); no body if there is none."""
        name = _username(request, strip=True)
        user = self._accounts.user(name)
        return _response(self._shown(user, request)) if user is not None else Response()

    def list_users(self, request: Request) -> Response:
        """Return the users whose names contain `filter` (3005); no body if there are none."""
        users = self._accounts.users(request.fields.get("filter", "").strip())
        return _response([self._shown(user, request) for user in users]) if users else Response()

    def merge_acl(self, request: Request) -> Response:
        """Add entries to the ACL of a user (3006, 3007)."""
        name = subject_name(request.fields.get("subject", ""))
        self._accounts.merge_acl(name, policies_from_json(_body(request)))
        return Response()

    def delete_acl(self, request: Request) -> Response:
        """Remove the ACL of a user, or its entries for a resource (3008)."""
        name = subject_name(request.fields.get("subject", ""))
        kind = PolicyType.named(request.fields.get("policyType")) or PolicyType.CUSTOM
        key = request.fields.get("resource", "").strip()
        resource = Resource.parse(key) if key else None
        if key and resource is None:
            raise AccountRefused("The resource type is null.")
        self._accounts.delete_acl(name, resource, kind)
        return Response()

    def get_acl(self, request: Request) -> Response:
        """Return the ACL of a user (3009); no body if it has none."""
        name = subject_name(request.fields.get("subject", ""))
        if self._accounts.user(name) is None:
            raise AccountRefused("The subject is not exist.")
        acl = self._accounts.acl(name)
        return _response(acl_to_json(name, acl)) if acl is not None else Response()

    def list_acls(self, request: Request) -> Response:
        """Return the ACLs of the subjects and resources that contain the filters (3010)."""
        part = request.fields.get("subjectFilter", "").strip()
        resource = request.fields.get("resourceFilter", "").strip()
        acls = []
        for user in self._accounts.users():
            subject, acl = f"User:{user.name}", self._accounts.acl(user.name)
            if acl is None or part not in subject:
                continue
            shown = acl if resource in subject else with_resource(acl, resource)
            if shown.custom or shown.default:
                acls.append(acl_to_json(user.name, shown))
        return _response(acls) if acls else Response()

    def _require_super(self, request: Request, code: int, action: str) -> None:
        if not self._accounts.is_super(request.fields.get(ACCESS_KEY, "")):
            text = _ONLY_SUPER.format(action)
            self._audit.refused(entry_of(request, None, text))
            raise RequestError(code, text)

    def _shown(self, user: User, request: Request) -> dict[str, object]:
        if self._accounts.is_super(request.fields.get(ACCESS_KEY, "")):
            return user_to_json(user)
        return user_to_json(replace(user, password=""))


def with_refusals(
    method: Callable[[Request], Response], audit: AuditLog
) -> Callable[[Request], Response]:
    """Return a handler that audits `AccountRefused` and turns it into NO_PERMISSION."""

    def handler(request: Request) -> Response:
        try:
            return method(request)
        except AccountRefused as refusal:
            audit.refused(entry_of(request, None, str(refusal)))
            raise RequestError(ResponseCode.NO_PERMISSION, str(refusal)) from None
        except NotSynced as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, not_synced(error)) from error
        except OSError as error:
            file = error.filename or "the accounts"
            text = f"{file} cannot be written, nothing was changed: {error.strerror}"
            raise RequestError(ResponseCode.SYSTEM_ERROR, text) from error

    return handler


def not_synced(error: NotSynced) -> str:
    """Return the remark about a change that took effect without a sync of its directory."""
    return (
        f"the accounts have changed, but a power failure may undo the change: {error.filename} "
        f"cannot be synced: {error.strerror}"
    )


def with_resource(acl: Acl, part: str) -> Acl:
    """Return the entries whose resource contains a text."""

    def kept(entries: tuple[PolicyEntry, ...]) -> tuple[PolicyEntry, ...]:
        return tuple(entry for entry in entries if part in entry.resource.key)

    return Acl(kept(acl.custom), kept(acl.default))


def _username(request: Request, *, strip: bool = False) -> str:
    name = request.fields.get("username", "")
    if not (name.strip() if strip else name):
        raise RequestError(ResponseCode.INVALID_PARAMETER, "The username is blank")
    return name


def _body(request: Request) -> JsonObject:
    try:
        value: object = json.loads(request.body)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, Mapping):
        raise RequestError(ResponseCode.INVALID_PARAMETER, "the body is not a JSON object")
    return value


def _response(value: object) -> Response:
    return Response(body=json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode())
