"""The kernel accepts a send if and only if signature, account and topic are valid."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from duemq.auth.signature import SIGNATURE, Credentials, is_signed
from duemq.send import layout
from duemq.send.grants import Grants
from duemq.send.kernels import sha1
from duemq_common.request import Request
from message_store.layout import Rows
from message_store.log.properties import encode_properties
from message_store.queues.topic_table import TopicTable
from tests.support.extended import examples
from tests.support.send_path import BORN, FastWay, frame_of

VERSION = 479
ALICE = Credentials("alice", "alice-secret")


class Access:
    """Accounts as a dict."""

    def __init__(self, *accounts: Credentials) -> None:
        self.secrets = {each.access_key: each.secret for each in accounts}
        self.version = 0

    def __call__(self, request: Request) -> None: ...

    def secret(self, access_key: str) -> str | None:
        return self.secrets.get(access_key)


def topics(*names: str) -> TopicTable:
    table = TopicTable()
    for name in names:
        table.set_routing(name, write_queues=4, read_queues=4, perm=6)
    return table


def fields_of(code: int, topic: str = "T", properties: str = "") -> dict[str, str]:
    names = layout.SEND_FIELDS if code == 10 else layout.SEND_LETTERS
    text = properties or encode_properties({"UNIQ_KEY": "7F00", "KEYS": 'é"\\'}).decode()
    values = ("p", topic, "TBW102", "4", "1", "0", "1700000000000", "0", text, "0", "false", "0")
    return dict(zip(names, (*values, "false"), strict=False))


def frame(code: int, fields: dict[str, Any], body: bytes, *, ascii: bool = True) -> bytes:
    header = {"code": code, "extFields": fields, "flag": 0, "opaque": 7, "version": VERSION}
    return frame_of(json.dumps(header, ensure_ascii=ascii).encode(), body)


def granted(credentials: Credentials, table: TopicTable, *names: str) -> Rows:
    grants = Grants(Access(credentials), table)
    sender = grants.sender(BORN)
    for name in names:
        grants.extend(
            sender, Request(310, fields_of(310, name) | {"AccessKey": credentials.access_key})
        )
    return grants.record(sender)


def is_taken(table: TopicTable, record: Any, data: bytes) -> bool:
    way = FastWay(table, sender=record)
    stop = way.take(data)
    assert stop == (layout.STOP_INCOMPLETE if way.batch.count else layout.STOP_DECODE)
    assert way.batch.count or not way.batch.staging_len
    return bool(way.batch.count)


texts = st.text(
    st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), max_size=60
)


@settings(max_examples=examples(300), deadline=None)
@given(
    st.sampled_from([10, 310]),
    st.text(
        st.characters(min_codepoint=33, max_codepoint=126, exclude_characters='"\\'),
        min_size=1,
        max_size=130,
    ),
    texts.filter(bool),
    texts,
    st.binary(min_size=1, max_size=400),
    st.booleans(),
)
def test_the_kernel_accepts_a_signed_send(
    code: int, name: str, secret: str, text: str, body: bytes, ascii: bool
) -> None:
    credentials, table = Credentials(name, secret), topics("T")
    properties = encode_properties({"UNIQ_KEY": "7F00", **({"KEYS": text} if text else {})})
    fields = credentials.fields(fields_of(code, properties=properties.decode()), body, VERSION)
    taken = len(name) <= layout.ACCESS_KEY_BYTES_MAX
    grants = Grants(Access(credentials), table)
    sender = grants.sender(BORN)
    grants.extend(sender, Request(code, fields))
    assert is_taken(table, grants.record(sender), frame(code, fields, body, ascii=ascii)) == taken


@settings(max_examples=examples(300), deadline=None)
@given(st.sampled_from([10, 310]), st.binary(min_size=1, max_size=200), st.data())
def test_a_modified_send_is_decoded_in_python(code: int, body: bytes, data: st.DataObject) -> None:
    table = topics("T", "U")
    record = granted(ALICE, table, "T", "U")
    fields = ALICE.fields(fields_of(code), body, VERSION)
    key = data.draw(st.sampled_from(sorted(fields)))
    change = data.draw(st.sampled_from(["value", "drop", "add", "body"]))
    if change == "value":
        fields[key] = data.draw(texts)
    elif change == "drop":
        del fields[key]
    elif change == "add":
        fields[data.draw(st.sampled_from(["SecurityToken", "x", "bname", "z"]))] = "1"
    else:
        body += b"x"
    expected = is_signed(fields, body, VERSION, ALICE.secret)
    if is_taken(table, record, frame(code, fields, body)):
        assert expected


def test_signatures_are_checked_at_every_content_length() -> None:
    table = topics("T")
    record = granted(ALICE, table, "T")
    for body_bytes in [*range(1, 140), 1_024, 4_096]:
        body = bytes(index & 255 for index in range(body_bytes))
        fields = ALICE.fields(fields_of(310), body, VERSION)
        assert is_taken(table, record, frame(310, fields, body)), body_bytes
        wrong = fields[SIGNATURE]
        for index in range(28):
            letter = "A" if wrong[index] != "A" else "B"
            changed = fields | {SIGNATURE: wrong[:index] + letter + wrong[index + 1 :]}
            assert not is_taken(table, record, frame(310, changed, body)), (body_bytes, index)


def test_a_grant_contains_only_topics_that_python_accepted() -> None:
    names = [f"T{index}" for index in range(layout.GRANT_TOPICS + 2)]
    table = topics(*names)
    record = granted(ALICE, table, *names[:-1])
    taken = [
        is_taken(table, record, frame(310, ALICE.fields(fields_of(310, name), b"x", VERSION), b"x"))
        for name in names
    ]
    assert taken == [False, *[True] * layout.GRANT_TOPICS, False]  # the last but one took place 0


def test_another_account_or_a_new_version_resets_the_grant() -> None:
    table, bob = topics("T", "U"), Credentials("bob", "bob-secret")
    access = Access(ALICE, bob)
    grants = Grants(access, table)

    def sent(credentials: Credentials, topic: str) -> bytes:
        return frame(310, credentials.fields(fields_of(310, topic), b"x", VERSION), b"x")

    sender = grants.sender(BORN)
    assert not is_taken(table, grants.record(sender), sent(ALICE, "T"))
    grants.extend(sender, Request(310, fields_of(310) | {"AccessKey": "alice"}))
    assert is_taken(table, grants.record(sender), sent(ALICE, "T"))
    assert not is_taken(table, grants.record(sender), sent(bob, "T"))
    grants.extend(sender, Request(310, fields_of(310, "U") | {"AccessKey": "bob"}))
    assert is_taken(table, grants.record(sender), sent(bob, "U"))
    assert not is_taken(table, grants.record(sender), sent(bob, "T"))
    access.version += 1
    for fields in ({"b": "U", "AccessKey": "eve"}, {"b": "U"}):
        grants.extend(sender, Request(310, fields))
        assert not is_taken(table, grants.record(sender), sent(bob, "U"))


def test_without_access_control_no_signature_is_checked() -> None:
    table = topics("T")
    grants = Grants(None, table)
    assert is_taken(table, grants.record(grants.sender(BORN)), frame(310, fields_of(310), b"x"))


@given(st.binary(max_size=300))
def test_sha1_equals_hashlib(data: bytes) -> None:
    state, words = np.array(sha1.START, np.uint32), np.zeros(sha1.SCHEDULE_WORDS, np.uint32)
    array, last = np.frombuffer(data.ljust(64), np.uint8).copy(), np.zeros(128, np.uint8)
    whole = len(data) // 64 * 64
    for pos in range(0, whole, 64):
        sha1.add_block(state, words, array, pos)
    last[: len(data) - whole] = array[whole : len(data)]
    sha1.add_last(state, words, last, len(data) - whole, len(data))
    out = np.zeros(20, np.uint8)
    sha1.put_digest(out, state)
    assert out.tobytes() == hashlib.sha1(data, usedforsecurity=False).digest()
