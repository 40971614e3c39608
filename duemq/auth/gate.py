"""Access check of requests against users and ACLs, before their handlers.

    request --> signature of a user --> permission for each access of the code --> handler
                     code 16                          code 16

Source: AuthenticationPipeline, AuthorizationPipeline, DefaultAuthenticationHandler,
AclAuthorizationHandler of Apache 5.3.3. The remarks are Apache's. DueMQ differs in three points:
some codes that Apache opens to every account need a permission (`RequestRow.always`), permissions
require a verified user, and the topic of a record that is requested by offset is checked
(`check_record`).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final

from msgspec import Struct

from duemq.auth.accesses import Access, TooManyNames
from duemq.auth.accounts import SUBJECT_PREFIX, Accounts
from duemq.auth.audit import AuditEntry, AuditLog
from duemq.auth.model import (
    Action,
    Decision,
    Resource,
    ResourceType,
    User,
    UserStatus,
    UserType,
)
from duemq.auth.record_access import cancel_actions
from duemq.auth.request_rules import accesses, allow
from duemq.auth.request_table import CHANGES, row_of
from duemq.auth.signature import ACCESS_KEY, is_signed
from duemq.net.dispatcher import RecordResult
from duemq_common.codes import RequestCode, ResponseCode
from duemq_common.errors import RequestError
from duemq_common.request import Request

ANY_TOPIC: Final = "DUEMQ_CONSOLE"  # stands for all topics: no message has it
REMARK_CHARACTERS_MAX: Final = 4_096  # a remark contains names from the client


class AccessRefused(Exception):
    """Refusal of a request: the remark of the response, and the missing access."""

    def __init__(self, remark: str, access: Access | None = None) -> None:
        self.remark, self.access = remark, access
        super().__init__(remark)


class GateRules(Struct, frozen=True, kw_only=True):
    """Settings of a gate.

    Attributes:
        cluster: Name of the broker's cluster, the resource of administrative requests.
        authorize: Whether permissions are checked, in addition to signatures.
        unsigned_codes: Codes that need no signature.
        free_codes: Codes that need no permission.
    """

    cluster: str
    authorize: bool = True
    unsigned_codes: frozenset[int] = frozenset()
    free_codes: frozenset[int] = frozenset()


class Gate:
    """Access check by signature and permissions (an `AccessCheck`)."""

    def __init__(self, accounts: Accounts, rules: GateRules, audit: AuditLog) -> None:
        self._accounts, self._rules, self._audit = accounts, rules, audit

    @property
    def version(self) -> int:
        """Version of the accounts; decisions of other versions are outdated."""
        return self._accounts.version

    def secret(self, access_key: str) -> str | None:
        """Return the secret of an enabled account, else None."""
        user = self._accounts.user(access_key)
        return user.password if user and user.status is UserStatus.ENABLE else None

    def __call__(self, request: Request) -> RecordResult | None:
        """Check a request; return what records its result in the audit log, if it is audited.

        Raises:
            RequestError: With NO_PERMISSION.
        """
        try:
            needed = self._check(request)
        except AccessRefused as refusal:
            raise self._error(request, refusal) from None
        if row_of(request.code).is_client:
            return None
        changes = [access for access in needed if not CHANGES.isdisjoint(access.actions)]
        if not changes:
            return None
        return self._audit.allowed(entry_of(request, one) for one in changes)

    def rights(self, request: Request) -> dict[str, bool]:
        """Return what the account of a checked request may do; the audit log omits it.

        `decide`: decide on pending messages of any topic; `administer`: change the cluster.
        """
        resources = {
            "decide": Resource.of_topic(ANY_TOPIC),
            "administer": Resource(ResourceType.CLUSTER, self._rules.cluster),
        }
        return {name: self._may_update(request, one) for name, one in resources.items()}

    def _may_update(self, request: Request, resource: Resource) -> bool:
        if not self._rules.authorize:
            return True
        try:
            self._authorize(request, Access(resource, (Action.UPDATE,)))
        except AccessRefused:
            return False
        return True

    def authenticate(self, request: Request) -> None:
        """Check only the signature of a request.

        An unsigned request is accepted if some codes need no signature; later requests are checked.

        Raises:
            RequestError: With NO_PERMISSION.
        """
        if ACCESS_KEY not in request.fields and self._rules.unsigned_codes:
            return
        try:
            self._authenticate(request)
        except AccessRefused as refusal:
            raise self._error(request, refusal) from None

    def check_record(self, request: Request, topic: str, *actions: Action) -> None:
        """Check the topic of a record that a request selects by offset.

        Raises:
            RequestError: With NO_PERMISSION.
        """
        if not self._rules.authorize or request.code in self._rules.free_codes:
            return
        try:
            self._authorize(request, Access(Resource.of_topic(topic), actions))
        except AccessRefused as refusal:
            raise self._error(request, refusal) from None

    def check_cancel(self, request: Request, topic: str, *, sent_to: str) -> None:
        """Check that the account of a request may cancel timers of a topic; audit the cancel.

        Raises:
            RequestError: With NO_PERMISSION.
        """
        actions = cancel_actions(topic, sent_to)
        self.check_record(request, topic, *actions)
        self._audit.allowed([entry_of(request, Access(Resource.of_topic(topic), actions))])

    def account_may(self, account: str, address: str, topic: str, *actions: Action) -> bool:
        """Return whether an account currently has permission for any of the actions on a topic."""
        user = self._accounts.user(account)
        if user is None or user.status is UserStatus.DISABLE:
            return False
        if not self._rules.authorize or user.type is UserType.SUPER:
            return True
        entry = self._accounts.policies(account).decide(Resource.of_topic(topic), actions, address)
        return entry is not None and entry.decision is Decision.ALLOW

    def may_publish(self, account: str, address: str) -> bool:
        """Return whether an account may send to any topic, and so register producer groups."""
        if not self._rules.authorize or RequestCode.HEART_BEAT in self._rules.free_codes:
            return True
        user = self._accounts.user(account)
        if user is None or user.status is UserStatus.DISABLE:
            return False
        policies = self._accounts.policies(account)
        return user.type is UserType.SUPER or policies.may_publish(address)

    def _error(self, request: Request, refusal: AccessRefused) -> RequestError:
        self._audit.refused(entry_of(request, refusal.access, refusal.remark))
        return RequestError(ResponseCode.NO_PERMISSION, refusal.remark[:REMARK_CHARACTERS_MAX])

    def _check(self, request: Request) -> list[Access]:
        rules = self._rules
        if request.code not in rules.unsigned_codes:
            self._authenticate(request)
        is_free = not rules.authorize or request.code in rules.free_codes
        check = allow if is_free else partial(self._authorize, request)
        try:
            return accesses(request.code, request.fields, request.body, rules.cluster, check)
        except TooManyNames as error:
            raise AccessRefused(str(error)) from None
        except (ValueError, RecursionError):
            if is_free:
                return []
            raise AccessRefused("parse authorization context error.") from None

    def _authenticate(self, request: Request) -> User:
        name = request.fields.get(ACCESS_KEY)
        if not name:
            raise AccessRefused("username cannot be null.")
        user = self._accounts.user(name)
        if user is None:
            raise AccessRefused(f"User:{name} is not found.")
        if user.status is UserStatus.DISABLE:
            raise AccessRefused(f"User:{name} is disabled.")
        if not is_signed(request.fields, request.body, request.version, user.password):
            raise AccessRefused("check signature failed.")
        return user

    def _authorize(self, request: Request, access: Access) -> None:
        name = request.fields.get(ACCESS_KEY)
        if name is None:  # a code of `unsigned_codes`
            raise AccessRefused(
                "Authorization failed. Please verify your access rights and try again."
            )
        user = self._accounts.user(name)
        if user is None:
            raise AccessRefused(f"User:{name} not found.")
        if user.type is UserType.SUPER:
            return
        address = request.peer.address[0] if request.peer is not None else ""
        entry = self._accounts.policies(name).decide(access.resource, access.actions, address)
        if entry is None or entry.decision is not Decision.ALLOW:
            reason = "no matched policies." if entry is None else "the decision is deny."
            subject, key = SUBJECT_PREFIX + name, access.resource.key
            text = f"{subject} has no permission to access {key} from {address}, {reason}"
            raise AccessRefused(text, access)


_ACCOUNT_FIELDS: Final[Mapping[int, str]] = {
    RequestCode.AUTH_CREATE_USER: "username",
    RequestCode.AUTH_UPDATE_USER: "username",
    RequestCode.AUTH_DELETE_USER: "username",
    RequestCode.AUTH_CREATE_ACL: "subject",
    RequestCode.AUTH_UPDATE_ACL: "subject",
    RequestCode.AUTH_DELETE_ACL: "subject",
    RequestCode.UPDATE_AND_CREATE_ACL_CONFIG: "accessKey",
    RequestCode.DELETE_ACL_CONFIG: "accessKey",
}
"""Header field with the account that a request changes, by code."""


def entry_of(request: Request, access: Access | None, reason: str = "") -> AuditEntry:
    """Return the audit entry of a request."""
    peer = "" if request.peer is None else "{}:{}".format(*request.peer.address)
    return AuditEntry(
        request.fields.get(ACCESS_KEY, ""),
        peer,
        request.code,
        access.resource.key if access else "",
        ",".join(action.value for action in access.actions) if access else "",
        reason,
        request.fields.get(_ACCOUNT_FIELDS.get(request.code, ""), ""),
    )
