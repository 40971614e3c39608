"""Replayed signed frames: what both brokers accept and refuse.

The table in docs/reference/security.md has these rows.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from duemq.auth.signature import Credentials
from duemq_common.codes import RequestCode
from duemq_common.request import Request, Response
from tests.interop.apache import Apache
from tests.support.accounts import KEYS, PROVIDERS, ROOT, Step, prepare, user_steps
from tests.support.duemq_server import DueMQ
from tests.support.extended import extended
from tests.support.raw_connection import RawPeer
from tests.support.server import Server

NO_PERMISSION = 16
TOPIC, OTHER = "orders", "others"
CREDENTIALS = Credentials("alice", "alice-secret")
TOPIC_FIELDS = {
    "defaultTopic": "TBW102",
    "readQueueNums": "1",
    "writeQueueNums": "1",
    "perm": "6",
    "topicFilterType": "SINGLE_TAG",
    "topicSysFlag": "0",
    "order": "false",
}
SEND = {
    "producerGroup": "p",
    "topic": TOPIC,
    "defaultTopic": "TBW102",
    "defaultTopicQueueNums": "1",
    "queueId": "0",
    "sysFlag": "0",
    "bornTimestamp": "1",
    "flag": "0",
    "properties": "",
    "reconsumeTimes": "0",
    "unitMode": "false",
    "batch": "false",
}
PLACE = {"topic": TOPIC, "queueId": "0"}


@pytest.fixture(scope="module", params=["duemq", extended("apache")])
def checked(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """A broker with an account that may send to one topic."""
    home = tmp_path_factory.mktemp("checked")
    made: Server
    if request.param == "duemq":
        made = DueMQ(home, keys=KEYS)
    else:
        made = Apache("5.3.3", home, keys=KEYS | PROVIDERS, heap="512m")
    with made as server:
        fields = [TOPIC_FIELDS | {"topic": name} for name in (TOPIC, OTHER)]
        steps: list[Step] = [(RequestCode.UPDATE_AND_CREATE_TOPIC, each, b"") for each in fields]
        steps += user_steps(CREDENTIALS, {f"Topic:{TOPIC}": ["Pub", "Sub", "Get"]})
        prepare(server.broker_address, ROOT, steps)
        yield server


def signed(code: int, fields: dict[str, str], body: bytes = b"") -> Request:
    return CREDENTIALS.sign(Request(code, dict(fields), body, version=479))


def response(server: Server, request: Request) -> Response:
    """Send a frame on a new connection, as an attacker replays a captured frame."""

    async def call() -> Response:
        async with await RawPeer.connect(server.broker_port) as peer:
            peer.send(request)
            return (await peer.read_response()).response

    return asyncio.run(call())


def end_of_queue(server: Server) -> int:
    fields = response(server, signed(RequestCode.GET_MAX_OFFSET, PLACE)).fields
    assert fields is not None
    return int(fields["offset"])


def test_a_replayed_send_is_stored_again(checked: Server) -> None:
    """The account is permitted, and a signed request has no sequence number or time."""
    before = end_of_queue(checked)
    frame = signed(RequestCode.SEND_MESSAGE, SEND, b"once")
    assert [response(checked, frame).code for _ in range(3)] == [0, 0, 0]
    assert end_of_queue(checked) == before + 3


def test_a_signature_is_valid_with_another_code(checked: Server) -> None:
    """The account needs the permission of that code, too."""
    frame = signed(RequestCode.GET_MAX_OFFSET, PLACE)
    assert response(checked, replace(frame, code=RequestCode.GET_MIN_OFFSET)).code == 0
    frame = replace(frame, code=RequestCode.DELETE_TOPIC_IN_BROKER)
    assert response(checked, frame).code == NO_PERMISSION


@pytest.mark.parametrize(
    "change",
    [
        {"body": b"other"},
        {"fields": {"topic": OTHER}},
        {"fields": {"properties": "KEYS\x01k\x02"}},
        {"fields": {"AccessKey": ROOT.access_key}},
        {"fields": {"Added": "x"}},
    ],
    ids=str,
)
def test_a_changed_frame_is_refused(checked: Server, change: dict[str, object]) -> None:
    before = end_of_queue(checked)
    frame = signed(RequestCode.SEND_MESSAGE, SEND, b"once")
    fields = change.get("fields")
    if isinstance(fields, dict):
        change = {"fields": dict(frame.fields) | fields}
    assert response(checked, replace(frame, **change)).code == NO_PERMISSION
    assert end_of_queue(checked) == before


def test_fields_whose_values_join_to_the_same_text_have_the_same_signature(
    checked: Server,
) -> None:
    """`a` + `bc` and `ab` + `c`: an attacker can move bytes between the fields."""
    frame = signed(RequestCode.GET_MAX_OFFSET, PLACE | {"zfirst": "a", "zsecond": "bc"})
    moved = dict(frame.fields) | {"zfirst": "ab", "zsecond": "c"}
    assert response(checked, replace(frame, fields=moved)).code == 0


def test_an_older_frame_is_refused_after_a_change_of_the_account(
    checked: Server,
) -> None:
    """A change of the ACL, the status or the secret of the account."""
    user, subject = (
        {"username": CREDENTIALS.access_key},
        {"subject": f"User:{CREDENTIALS.access_key}"},
    )
    frame = signed(RequestCode.SEND_MESSAGE, SEND, b"once")
    assert response(checked, frame).code == 0
    off = (RequestCode.AUTH_UPDATE_USER, user, json.dumps({"userStatus": "disable"}).encode())
    on = (RequestCode.AUTH_UPDATE_USER, user, json.dumps({"userStatus": "enable"}).encode())
    prepare(checked.broker_address, ROOT, [off])
    assert response(checked, frame).code == NO_PERMISSION
    prepare(checked.broker_address, ROOT, [on])
    assert response(checked, frame).code == 0
    prepare(checked.broker_address, ROOT, [(RequestCode.AUTH_DELETE_ACL, subject, b"")])
    assert response(checked, frame).code == NO_PERMISSION
    permissions = {f"Topic:{TOPIC}": ["Pub", "Sub", "Get"]}
    prepare(checked.broker_address, ROOT, user_steps(CREDENTIALS, permissions)[1:])
    assert response(checked, frame).code == 0
    secret = (RequestCode.AUTH_UPDATE_USER, user, json.dumps({"password": "new"}).encode())
    prepare(checked.broker_address, ROOT, [secret])
    assert response(checked, frame).code == NO_PERMISSION
    back = (
        RequestCode.AUTH_UPDATE_USER,
        user,
        json.dumps({"password": CREDENTIALS.secret}).encode(),
    )
    prepare(checked.broker_address, ROOT, [back])
