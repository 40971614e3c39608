"""Access check of ACL 1.0 against `plain_acl.yml`; a refusal has code 1.

Changes of a broker, a name server or accounts require an administrator; the other permissions are
in `plain_permissions.py`, and `request_table.py` has those of each code.
Source: PlainAccessValidator.parse, PlainPermissionManager.validate of Apache 4.9.7.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from duemq.auth.accesses import Access
from duemq.auth.audit import AuditLog
from duemq.auth.gate import REMARK_CHARACTERS_MAX, entry_of
from duemq.auth.model import Action, Resource
from duemq.auth.plain_permissions import administrator
from duemq.auth.plain_rules import PUB, SUB, PlainAccount, PlainRefused, PlainRules
from duemq.auth.record_access import cancel_actions
from duemq.auth.request_rules import accesses
from duemq.auth.request_table import CHANGES, row_of
from duemq.auth.signature import ACCESS_KEY, VERSION_4_9_3, is_signed
from duemq.net.dispatcher import RecordResult
from duemq_common.codes import ResponseCode
from duemq_common.errors import RequestError
from duemq_common.request import Request
from duemq_common.topics import TRACE_TOPIC

EXCEPTION: Final = "org.apache.rocketmq.acl.common.AclException"


class PlainGate:
    """Access check by the rules of ACL 1.0 (an `AccessCheck`).

    Args:
        rules: Returns the current rules.
        version: Returns the version of the rules.
        cluster: Name of the broker's cluster, for the audit log.
    """

    def __init__(
        self,
        rules: Callable[[], PlainRules],
        version: Callable[[], int],
        audit: AuditLog,
        cluster: str,
    ) -> None:
        self._rules, self._version, self._audit = rules, version, audit
        self._cluster = cluster

    @property
    def version(self) -> int:
        """Version of the rules."""
        return self._version()

    def secret(self, access_key: str) -> str | None:
        """Return the secret of an account, or None."""
        account = self._rules().account(access_key)
        return account.secret if account is not None else None

    def __call__(self, request: Request) -> RecordResult | None:
        """Check a request; return what records its result in the audit log, if it is audited.

        Raises:
            RequestError: With SYSTEM_ERROR, as in Apache 4.9.7.
        """
        try:
            self._check(request)
        except PlainRefused as refusal:
            raise self._error(request, refusal) from None
        if not needs_admin(request.code):
            return None
        entries = []
        for access in self._administered(request):
            entry = entry_of(request, access)
            if access is None or not CHANGES.isdisjoint(access.actions):
                entries.append(entry)
            else:
                self._audit.allowed_read(entry)
        return self._audit.allowed(entries) if entries else None

    def rights(self, request: Request) -> dict[str, bool]:
        """Return what the account of a checked request may do; only administrators see views."""
        return {"decide": True, "administer": True}

    def _administered(self, request: Request) -> Sequence[Access | None]:
        """Return what an administrative request accesses; None if it cannot be determined.

        The handler refuses a malformed request; the audit log has a line for each.
        """
        try:
            needed = accesses(request.code, request.fields, request.body, self._cluster)
        except (ValueError, RecursionError):
            needed = []
        return needed or [None]

    def authenticate(self, request: Request) -> None:
        """Check only the signature of a request.

        Raises:
            RequestError: With SYSTEM_ERROR.
        """
        try:
            self._authenticate(request)
        except PlainRefused as refusal:
            raise self._error(request, refusal) from None

    def check_record(self, request: Request, topic: str, *actions: Action) -> None:
        """Check the topic of a record that a request selects by offset.

        Raises:
            RequestError: With SYSTEM_ERROR.
        """
        rules, address = self._rules(), _address(request)
        if rules.is_free(address):
            return
        try:
            account = _account(rules, request)
            if not account.is_free(address):
                account.check(request.code, {topic: _permission_of(actions)})
        except PlainRefused as refusal:
            raise self._error(request, refusal) from None

    def check_cancel(self, request: Request, topic: str, *, sent_to: str) -> None:
        """Check that the account of a request may cancel timers of a topic; audit the cancel.

        ACL 1.0 has no `Update`: `PUB` on the topic is required.

        Raises:
            RequestError: With SYSTEM_ERROR.
        """
        actions = cancel_actions(topic, sent_to)
        self.check_record(request, topic, *actions)
        self._audit.allowed([entry_of(request, Access(Resource.of_topic(topic), actions))])

    def account_may(self, account: str, address: str, topic: str, *actions: Action) -> bool:
        """Return whether an account currently has permission for any of the actions on a topic."""
        rules = self._rules()
        if rules.is_free(address):
            return True
        plain_account = rules.account(account)
        try:
            if plain_account is not None and not plain_account.is_free(address):
                plain_account.check(0, {topic: _permission_of(actions)})
        except PlainRefused:
            return False
        return plain_account is not None

    def may_publish(self, account: str, address: str) -> bool:
        """Return whether an account may send to any topic, and so register producer groups."""
        rules = self._rules()
        plain_account = rules.account(account)
        if rules.is_free(address):
            return True
        return plain_account is not None and (
            plain_account.is_free(address) or plain_account.may_publish
        )

    def _error(self, request: Request, refusal: PlainRefused) -> RequestError:
        self._audit.refused(entry_of(request, None, str(refusal)))
        text = f"{EXCEPTION}: {refusal}"[:REMARK_CHARACTERS_MAX]
        return RequestError(ResponseCode.SYSTEM_ERROR, text)

    def _authenticate(self, request: Request) -> PlainAccount | None:
        """Return the account that signed a request; None if its address needs no signature."""
        rules, address = self._rules(), _address(request)
        if rules.is_free(address):
            return None
        account = _account(rules, request)
        if account.is_free(address):
            return None
        if not is_signed(request.fields, request.body, VERSION_4_9_3, account.secret):
            raise PlainRefused(f"Check signature failed for accessKey={account.access_key}")
        return account

    def _check(self, request: Request) -> None:
        account = self._authenticate(request)
        if account is None:
            return
        needed = needed_permissions(request)
        if needed.get(TRACE_TOPIC) != PUB:
            account.check(request.code, needed, needs_admin=needs_admin(request.code))


def needs_admin(code: int) -> bool:
    """Return whether a request requires an administrator, as those of plugins do."""
    return row_of(code).plain is administrator


def _address(request: Request) -> str:
    return request.peer.address[0] if request.peer is not None else ""


def _permission_of(actions: tuple[Action, ...]) -> int:
    return SUB if Action.SUB in actions else PUB


def _account(rules: PlainRules, request: Request) -> PlainAccount:
    name = request.fields.get(ACCESS_KEY)
    if name is None:
        raise PlainRefused("No accessKey is configured")
    account = rules.account(name)
    if account is None:
        raise PlainRefused(f"No acl config for {name}")
    return account


def needed_permissions(request: Request) -> dict[str, int]:
    """Return the required permissions of a request, by topic and by retry topic of a group.

    Raises:
        PlainRefused: The body is malformed.
    """
    permission = row_of(request.code).plain
    if permission is None:
        return {}
    try:
        return {name: perm for name, perm in permission(request) if name is not None}
    except (ValueError, RecursionError) as error:
        raise PlainRefused(str(error)) from None
