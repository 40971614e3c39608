"""The gate: which requests pass, what the others are answered, what is logged."""

from __future__ import annotations

import json
import logging
from contextlib import nullcontext
from typing import Any

import pytest

from duemq.auth.accounts import Accounts
from duemq.auth.audit import AuditLog
from duemq.auth.gate import REMARK_CHARACTERS_MAX, Gate, GateRules
from duemq.auth.model import (
    Action,
    Decision,
    PolicyEntry,
    PolicyType,
    Resource,
    ResourceType,
    User,
    UserStatus,
    UserType,
)
from duemq.auth.signature import SIGNATURE, Credentials
from duemq_common.codes import RequestCode, ResponseCode
from duemq_common.errors import RequestError
from duemq_common.request import Request

ROOT = Credentials("root", "root-secret")
ALICE = Credentials("alice", "alice-secret")
NO_PERMISSION = int(ResponseCode.NO_PERMISSION)
TOPIC = Resource(ResourceType.TOPIC, "T")


class Here:
    address = ("10.0.0.7", 5_012)


ENTRY = PolicyEntry(TOPIC, (Action.PUB,), Decision.ALLOW, ("10.0.0.0/8",))


def gate(
    authorize: bool = True, entry: PolicyEntry | None = ENTRY, **codes: frozenset[int]
) -> Gate:
    users = {
        "root": User("root", "root-secret", UserType.SUPER),
        "alice": User("alice", "alice-secret"),
        "old": User("old", "old-secret", UserType.SUPER, UserStatus.DISABLE),
    }
    accounts = Accounts(users)
    if entry is not None:
        accounts.merge_acl("alice", {PolicyType.CUSTOM: [entry]})
    rules = GateRules(cluster="DefaultCluster", authorize=authorize, **codes)
    return Gate(accounts, rules, AuditLog(lambda: 0))


def request(
    code: int, credentials: Credentials | None, body: bytes = b"", **fields: Any
) -> Request:
    made = Request(code, {k: str(v) for k, v in fields.items()}, body, version=479)
    signed = credentials.sign(made) if credentials is not None else made
    signed.peer = Here()  # type: ignore[assignment]
    return signed


ADMIN = RequestCode.GET_BROKER_CONFIG
SEND = RequestCode.SEND_MESSAGE_V2


@pytest.mark.parametrize(
    ("requested", "remark"),
    [
        (request(SEND, None, b="T"), "username cannot be null."),
        (request(SEND, None), "username cannot be null."),
        (request(SEND, Credentials("", "x"), b="T"), "username cannot be null."),
        (request(SEND, Credentials("eve", "x"), b="T"), "User:eve is not found."),
        (request(SEND, Credentials("old", "old-secret"), b="T"), "User:old is disabled."),
        (request(SEND, Credentials("alice", "x"), b="T"), "check signature failed."),
        (
            request(SEND, ALICE, b="U"),
            "User:alice has no permission to access Topic:U from 10.0.0.7, no matched policies.",
        ),
        (
            request(ADMIN, ALICE),
            "User:alice has no permission to access Cluster:DefaultCluster from 10.0.0.7, "
            "no matched policies.",
        ),
        (
            request(RequestCode.HEART_BEAT, ALICE, b"{"),
            "parse authorization context error.",
        ),
    ],
)
def test_a_refusal_has_apaches_remark(requested: Request, remark: str) -> None:
    with pytest.raises(RequestError) as caught:
        gate()(requested)
    assert (caught.value.code, caught.value.remark) == (NO_PERMISSION, remark)


def test_a_changed_request_does_not_match_its_signature() -> None:
    requested = request(SEND, ALICE, b"body", b="T")
    gate()(requested)
    for change in ({"b": "U"}, {"extra": "1"}, {SIGNATURE: ""}, {SIGNATURE: "é"}):
        other = Request(
            SEND, requested.fields | change, requested.body, version=479, peer=requested.peer
        )
        with pytest.raises(RequestError, match="check signature failed"):
            gate()(other)
    other = Request(SEND, requested.fields, b"other", version=479, peer=requested.peer)
    with pytest.raises(RequestError, match="check signature failed"):
        gate()(other)


def test_a_remark_is_bounded_whatever_the_client_names() -> None:
    with pytest.raises(RequestError) as caught:
        gate()(request(SEND, Credentials("x" * 100_000, "x"), b="T"))
    assert len(caught.value.remark) == REMARK_CHARACTERS_MAX


def test_a_repeated_frame_passes_again_as_the_protocol_has_no_number() -> None:
    checked, requested = gate(), request(SEND, ALICE, b="T")
    checked(requested)
    checked(requested)


def test_text_in_another_charset_does_not_match() -> None:
    requested = request(SEND, ALICE, b="T", i="é")
    gate()(requested)
    requested.fields["i"] = "é".encode().decode("latin-1")
    with pytest.raises(RequestError, match="check signature failed"):
        gate()(requested)
    requested.fields["i"] = "\ud800"
    with pytest.raises(RequestError, match="check signature failed"):
        gate()(requested)


def test_permitted_requests_pass() -> None:
    checked = gate()
    checked(request(SEND, ALICE, b="T"))
    checked(request(ADMIN, ROOT))
    checked(request(RequestCode.HEART_BEAT, ALICE, b'{"consumerDataSet":[]}'))
    gate(authorize=False)(request(ADMIN, ALICE))
    gate(unsigned_codes=frozenset({SEND}))(request(SEND, Credentials("root", "x"), b="T"))
    gate(free_codes=frozenset({ADMIN}))(request(ADMIN, ALICE))


def test_a_name_that_is_not_verified_has_no_permission() -> None:
    checked = gate(unsigned_codes=frozenset({SEND}))
    with pytest.raises(RequestError, match="verify your access rights"):
        checked(request(SEND, None, b="T"))
    with pytest.raises(RequestError, match="User:eve not found"):
        checked(request(SEND, Credentials("eve", ""), b="T"))


def test_refusals_and_administration_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "duemq.audit")
    checked = gate()
    forged = Credentials("a\n\x1b[2J" + "x" * 500, "x")
    with pytest.raises(RequestError):
        checked(request(SEND, forged, b="T"))
    checked(request(RequestCode.UPDATE_AND_CREATE_TOPIC, ROOT, topic="T"))
    checked(request(SEND, ROOT, b="T"))
    refused, allowed = (json.loads(record.getMessage()) for record in caplog.records)
    assert "\n" not in caplog.records[0].getMessage()
    assert "\x1b" not in caplog.records[0].getMessage()
    assert len(caplog.records[0].getMessage()) < 1_000
    assert refused["event"] == "refused"
    assert refused["from"] == "10.0.0.7:5012"
    assert allowed == {
        "event": "allowed",
        "user": "root",
        "from": "10.0.0.7:5012",
        "code": 17,
        "resource": "Topic:T",
        "action": "Create",
    }


@pytest.mark.parametrize(
    ("requested", "unsigned_codes", "passes"),
    [
        (request(SEND, ALICE), frozenset(), True),  # without the permission
        (request(SEND, Credentials("alice", "x")), frozenset(), False),
        (request(SEND, Credentials("alice", "x")), frozenset({105}), False),
        (request(SEND, Credentials("eve", "x")), frozenset(), False),
        (request(SEND, None), frozenset(), False),
        (request(SEND, None), frozenset({105}), True),  # each of its requests is checked
    ],
)
def test_a_signature_is_checked_without_permissions(
    requested: Request, unsigned_codes: frozenset[int], passes: bool
) -> None:
    checked = gate(unsigned_codes=unsigned_codes)
    with nullcontext() if passes else pytest.raises(RequestError):
        checked.authenticate(requested)


@pytest.mark.parametrize(
    ("account", "topic", "actions", "may"),
    [
        ("alice", "T", (Action.PUB,), True),
        ("alice", "T", (Action.SUB, Action.PUB), True),
        ("alice", "T", (Action.SUB,), False),
        ("alice", "U", (Action.PUB,), False),
        ("root", "U", (Action.SUB,), True),
        ("old", "T", (Action.PUB,), False),  # disabled
        ("absent", "T", (Action.PUB,), False),
    ],
)
def test_permission_of_an_account_that_sends_no_request(
    account: str, topic: str, actions: tuple[Action, ...], may: bool
) -> None:
    assert gate().account_may(account, "10.0.0.7", topic, *actions) is may
    assert gate(authorize=False).account_may(account, "", topic, *actions) is (
        account in ("alice", "root")
    )


@pytest.mark.finding("3S3")
@pytest.mark.parametrize(
    ("account", "entry", "allowed"),
    [
        ("root", None, True),
        ("old", None, False),
        ("unknown", None, False),
        ("", None, False),
        ("alice", PolicyEntry(TOPIC, (Action.SUB,), Decision.ALLOW), False),
        ("alice", PolicyEntry(TOPIC, (Action.PUB,), Decision.ALLOW), True),
        ("alice", PolicyEntry(TOPIC, (Action.ALL,), Decision.ALLOW), True),
        ("alice", PolicyEntry(TOPIC, (Action.PUB,), Decision.DENY), False),
        ("alice", PolicyEntry(TOPIC, (Action.PUB,), Decision.ALLOW, ("192.168.0.1",)), False),
        (
            "alice",
            PolicyEntry(Resource(ResourceType.ANY, None), (Action.PUB,), Decision.ALLOW),
            True,
        ),
        ("alice", PolicyEntry(Resource.group("G"), (Action.PUB,), Decision.ALLOW), False),
    ],
)
def test_an_account_that_may_send_to_a_topic_may_register_producers(
    account: str, entry: PolicyEntry | None, allowed: bool
) -> None:
    assert gate(entry=entry).may_publish(account, "10.0.0.7") is allowed
    assert gate(authorize=False).may_publish(account, "10.0.0.7")
    assert gate(free_codes=frozenset({34})).may_publish(account, "10.0.0.7")
