"""Gate of ACL 1.0: checks every request against `plain_acl.yml`; a refusal has code 1.

Source: PlainAccessValidator.parse, PlainPermissionManager.validate of Apache 4.9.7. DueMQ checks
some codes that Apache's broker leaves open to every account: batches as sends, pulls of the lite
consumer as pulls, changes of the broker and all requests about accounts as administration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from delivery.plugin import Request
from duemq.auth.audit import AuditLog
from duemq.auth.gate import CHANGES, REMARK_CHARACTERS_MAX, entry_of
from duemq.auth.model import RETRY_PREFIX, is_retry_topic
from duemq.auth.plain_rules import ADMIN_CODES, PUB, SUB, PlainAccount, PlainRefused, PlainRules
from duemq.auth.request_rules import OWN_RULES, accesses, body_object, body_objects
from duemq.auth.signature import ACCESS_KEY, VERSION_4_9_3, is_signed
from duemq.net.codes import RequestCode, ResponseCode
from message_store.errors import RequestError

TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
EXCEPTION: Final = "org.apache.rocketmq.acl.common.AclException"
OUR_ADMIN_CODES: Final = (
    ADMIN_CODES
    | {code for code, rule in OWN_RULES.items() if rule.action in CHANGES}
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
    """Decides about requests (an `AccessCheck`).

    Args:
        rules: Returns the rules in force.
        version: Returns a number that changes with them.
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
        """Number of changes of the rules."""
        return self._version()

    def secret(self, access_key: str) -> str | None:
        """Return the secret of an account, None if there is none."""
        account = self._rules().account(access_key)
        return account.secret if account is not None else None

    def __call__(self, request: Request) -> None:
        """Check a request.

        Raises:
            RequestError: With SYSTEM_ERROR, as Apache 4.9.7 answers.
        """
        try:
            self._check(request)
        except PlainRefused as refusal:
            self._audit.refused(entry_of(request, None, str(refusal)))
            text = f"{EXCEPTION}: {refusal}"[:REMARK_CHARACTERS_MAX]
            raise RequestError(ResponseCode.SYSTEM_ERROR, text) from None
        if request.code in OUR_ADMIN_CODES:
            for access in accesses(request.code, request.fields, b"", self._cluster):
                self._audit.allowed(entry_of(request, access))

    def _check(self, request: Request) -> None:
        rules = self._rules()
        address = request.peer.address[0] if request.peer is not None else ""
        if rules.is_free(address):
            return
        account = _account(rules, request)
        if account.is_free(address):
            return
        if not is_signed(request.fields, request.body, VERSION_4_9_3, account.secret):
            raise PlainRefused(f"Check signature failed for accessKey={account.access_key}")
        needed = needed_permissions(request)
        if needed.get(TRACE_TOPIC) != PUB:
            account.check(request.code, needed, OUR_ADMIN_CODES)


def _account(rules: PlainRules, request: Request) -> PlainAccount:
    name = request.fields.get(ACCESS_KEY)
    if name is None:
        raise PlainRefused("No accessKey is configured")
    account = rules.account(name)
    if account is None:
        raise PlainRefused(f"No acl config for {name}")
    return account


def needed_permissions(request: Request) -> dict[str, int]:
    """Return the permissions that a request needs, by topic and by retry topic of a group.

    Raises:
        PlainRefused: The body of a request that names groups is malformed.
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
        else:
            yield topic, PUB

    return needed


def _pull(request: Request) -> Needed:
    yield request.fields.get("topic"), SUB
    yield _group(request.fields.get("consumerGroup")), SUB


def _topic(permission: int) -> Callable[[Request], Needed]:
    return lambda request: iter([(request.fields.get("topic"), permission)])


def _one_group(field: str) -> Callable[[Request], Needed]:
    return lambda request: iter([(_group(request.fields.get(field)), SUB)])


def _heartbeat(request: Request) -> Needed:
    for consumer in body_objects(body_object(request.body).get("consumerDataSet")):
        yield _group(str(consumer.get("groupName") or "")), SUB
        for subscription in body_objects(consumer.get("subscriptionDataSet")):
            yield str(subscription.get("topic") or ""), SUB


_NEEDED: Final[Mapping[int, Callable[[Request], Needed]]] = {
    10: _send("topic", "group"),
    310: _send("b", "a"),
    320: _send("b", "a"),
    11: _pull,
    361: _pull,
    12: _topic(SUB),
    370: _topic(PUB),
    15: _pull,
    34: _heartbeat,
    35: _one_group("consumerGroup"),
    36: _one_group("group"),
    38: _one_group("consumerGroup"),
}
