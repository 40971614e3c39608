"""Access check of ACL 1.0 against `plain_acl.yml`; a refusal has code 1.

DueMQ also checks codes that Apache's broker opens to every account. Batches and ends of
transactions require PUB on the topic, lite pulls and resets SUB on topic and group, locks SUB on
the group. Changes of a broker, a name server or accounts require an administrator.
Source: PlainAccessValidator.parse, PlainPermissionManager.validate of Apache 4.9.7.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from duemq.auth.audit import AuditLog
from duemq.auth.gate import CHANGES, REMARK_CHARACTERS_MAX, entry_of
from duemq.auth.model import RETRY_PREFIX, Action, Resource, is_retry_topic
from duemq.auth.plain_rules import ADMIN_CODES, PUB, SUB, PlainAccount, PlainRefused, PlainRules
from duemq.auth.record_access import cancel_actions
from duemq.auth.request_bodies import HeartbeatBody, LockBody, decoded
from duemq.auth.request_rules import OWN_RULES, Access, accesses, is_known
from duemq.auth.signature import ACCESS_KEY, VERSION_4_9_3, is_signed
from duemq.net.codes import RequestCode, ResponseCode
from duemq_common.errors import RequestError
from duemq_common.request import Request

TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
EXCEPTION: Final = "org.apache.rocketmq.acl.common.AclException"
OUR_ADMIN_CODES: Final = (
    ADMIN_CODES
    | {code for code, rule in OWN_RULES.items() if rule.action in CHANGES}
    | {100, 102, 103, 104, 205, 216, 217, 327, 904}  # changes of a name server
    | {9001, 9002}  # views of pending messages
    | {
        RequestCode.UPDATE_AND_CREATE_ACL_CONFIG,
        RequestCode.DELETE_ACL_CONFIG,
        RequestCode.GET_BROKER_CLUSTER_ACL_INFO,
        RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG,
        RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG,
    }
)
Needed = Iterator[tuple[str | None, int]]


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

    def __call__(self, request: Request) -> None:
        """Check a request.

        Raises:
            RequestError: With SYSTEM_ERROR, as in Apache 4.9.7.
        """
        try:
            self._check(request)
        except PlainRefused as refusal:
            raise self._error(request, refusal) from None
        if needs_admin(request.code):
            for access in self._administered(request):
                self._audit.allowed(entry_of(request, access))

    def _administered(self, request: Request) -> Sequence[Access | None]:
        """Return what an administrative request accesses; None if it cannot be determined.

        The handler refuses a malformed request; the audit log has a line for each.
        """
        try:
            found = accesses(request.code, request.fields, request.body, self._cluster)
        except (ValueError, RecursionError):
            found = []
        return found or [None]

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
        self._audit.allowed(entry_of(request, Access(Resource.of_topic(topic), actions)))

    def account_may(self, account: str, address: str, topic: str, *actions: Action) -> bool:
        """Return whether an account currently has permission for any of the actions on a topic."""
        rules = self._rules()
        if rules.is_free(address):
            return True
        found = rules.account(account)
        try:
            if found is not None and not found.is_free(address):
                found.check(0, {topic: _permission_of(actions)})
        except PlainRefused:
            return False
        return found is not None

    def may_publish(self, account: str, address: str) -> bool:
        """Return whether an account may send to any topic, and so register producer groups."""
        rules = self._rules()
        found = rules.account(account)
        if rules.is_free(address):
            return True
        return found is not None and (found.is_free(address) or found.may_publish)

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
    return code in OUR_ADMIN_CODES or not is_known(code)


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
    find = _NEEDED.get(request.code)
    if find is None:
        return {}
    try:
        return {name: perm for name, perm in find(request) if name is not None}
    except (ValueError, RecursionError) as error:
        raise PlainRefused(str(error)) from None


def _group(name: str | None) -> str | None:
    return None if name is None else RETRY_PREFIX + name.removeprefix(RETRY_PREFIX)


def _send(topic_field: str, group_field: str) -> Callable[[Request], Needed]:
    def needed(request: Request) -> Needed:
        topic = request.fields.get(topic_field)
        if is_retry_topic(topic):
            yield _group(request.fields.get(group_field)), SUB
            yield topic, SUB
        else:
            yield topic, PUB

    return needed


def _pull(request: Request) -> Needed:
    yield request.fields.get("topic"), SUB
    yield _group(request.fields.get("consumerGroup")), SUB


def _topic(permission: int) -> Callable[[Request], Needed]:
    return lambda request: iter([(request.fields.get("topic"), permission)])


def _progress(group_field: str) -> Callable[[Request], Needed]:
    def needed(request: Request) -> Needed:
        yield _group(request.fields.get(group_field)), SUB
        yield request.fields.get("topic"), SUB

    return needed


def _locked(request: Request) -> Needed:
    yield _group(decoded(request.body, LockBody).group), SUB


def _one_group(field: str) -> Callable[[Request], Needed]:
    return lambda request: iter([(_group(request.fields.get(field)), SUB)])


def _heartbeat(request: Request) -> Needed:
    for consumer in decoded(request.body, HeartbeatBody).consumers:
        yield _group(consumer.group), SUB
        for subscription in consumer.subscriptions:
            yield subscription.topic, SUB


_NEEDED: Final[Mapping[int, Callable[[Request], Needed]]] = {
    10: _send("topic", "group"),
    310: _send("b", "a"),
    320: _send("b", "a"),
    11: _pull,
    361: _pull,
    12: _topic(SUB),
    37: _topic(PUB),
    41: _locked,
    42: _locked,
    222: _progress("group"),
    309: _progress("consumerGroup"),
    314: _progress("destGroup"),
    324: _topic(PUB),
    325: lambda request: iter([(request.fields.get("b"), PUB)]),
    370: _topic(PUB),
    15: _pull,
    34: _heartbeat,
    35: _one_group("consumerGroup"),
    36: _one_group("group"),
    38: _one_group("consumerGroup"),
}
