"""Internal topics are closed: every request code against every topic, on a running broker."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from duemq.registry.internal_topics import INTERNAL_TOPICS, TopicAccess, client_access, is_internal
from duemq_common import topics
from message_store.log.offset_id import encode_offset_id
from tests.support.encoded_records import encode_record
from tests.support.running_broker import running, small
from tests.support.stores import LOOPBACK

HALF, OP = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"
REVIVE = "rmq_sys_REVIVE_LOG_DefaultCluster"
TOPICS = [*INTERNAL_TOPICS, REVIVE]
CLOSED = [name for name in TOPICS if not client_access(name) & TopicAccess.READ]
NO_PERMISSION, INVALID_PARAMETER, SYSTEM_ERROR = 16, 29, 1
LETTERS = "abcdefghi"
BODY_AT = 88  # of a record whose hosts are IPv4


def send_fields(topic: str, **properties: str) -> dict[str, str | int]:
    text = "".join(f"{name}\x01{value}\x02" for name, value in properties.items())
    return {
        "producerGroup": "p",
        "topic": topic,
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": 1,
        "queueId": 0,
        "sysFlag": 0,
        "bornTimestamp": 1,
        "flag": 0,
        "properties": text,
    }


def letters(fields: dict[str, str | int]) -> dict[str, str | int]:
    return dict(zip(LETTERS, fields.values(), strict=True))


def write_requests(topic: str) -> list[tuple[int, dict[str, str | int], bytes]]:
    plain = send_fields(topic, UNIQ_KEY="U", REPLY_TO_CLIENT="c")
    half = send_fields(topic, UNIQ_KEY="U", TRAN_MSG="true", PGROUP="p")
    later = send_fields(topic, UNIQ_KEY="U", DELAY="1")
    return [
        (10, plain, b"x"),
        (310, letters(plain), b"x"),
        (310, letters(half), b"x"),
        (310, letters(later), b"x"),
        (320, letters(plain), b"x"),
        (324, plain, b"x"),
        (325, letters(plain), b"x"),
        (370, {"producerGroup": "p", "topic": topic, "recallHandle": "x"}, b""),
    ]


def read_requests(topic: str) -> list[tuple[int, dict[str, str | int]]]:
    pull: dict[str, str | int] = {
        "consumerGroup": "g",
        "topic": topic,
        "queueId": 0,
        "queueOffset": 0,
        "maxMsgNums": 32,
        "sysFlag": 4,
        "commitOffset": 0,
        "suspendTimeoutMillis": 0,
        "subscription": "*",
        "subVersion": 0,
    }
    place: dict[str, str | int] = {"topic": topic, "queueId": 0}
    return [
        (11, pull),
        (361, pull),
        (11, pull | {"sysFlag": 5, "commitOffset": 9}),
        (
            12,
            {"topic": topic, "key": "U", "maxNum": 9, "beginTimestamp": 0, "endTimestamp": 1 << 60},
        ),
        (321, place | {"index": 0, "count": 9}),
        (15, place | {"consumerGroup": "g", "commitOffset": 1}),
        (222, {"topic": topic, "group": "g", "timestamp": -1, "isForce": "true"}),
        (314, {"srcGroup": "g", "destGroup": "h", "topic": topic}),
    ]


@pytest.mark.finding("A2")
@pytest.mark.finding("A3")
def test_no_request_writes_to_an_internal_topic(tmp_path: Path) -> None:
    async def scene() -> None:
        async with running(small(tmp_path)) as (broker, client):
            assert (await client.send("T", b"warm")).code == 0
            end = broker.store.max_offset
            for topic in TOPICS:
                for code, fields, body in write_requests(topic):
                    response = await client.call(code, fields, body)
                    assert response.code == NO_PERMISSION, (topic, code, response)
            assert broker.store.max_offset == end

    asyncio.run(scene())


@pytest.mark.finding("A2")
def test_no_request_reads_an_internal_topic_or_names_offsets_in_it(tmp_path: Path) -> None:
    async def scene() -> None:
        async with running(small(tmp_path)) as (broker, client):
            assert (await client.send("T", b"warm")).code == 0
            assert (await client.pull("T", 0)).code == 0  # now there is a group
            before = broker.parts.offsets.offset_table()
            for topic in CLOSED:
                for code, fields in read_requests(topic):
                    response = await client.call(code, fields)
                    assert response.code in (NO_PERMISSION, 17), (topic, code, response)
                    assert not response.body
                    if code in (12, 15, 222, 314, 321):
                        assert response.code == NO_PERMISSION, (topic, code, response)
            assert broker.parts.offsets.offset_table() == before

    asyncio.run(scene())


@pytest.mark.parametrize("code", [17, 18, 215])
def test_no_request_changes_or_deletes_an_internal_topic(tmp_path: Path, code: int) -> None:
    async def scene() -> None:
        async with running(small(tmp_path)) as (broker, client):
            for topic in TOPICS:
                config = {
                    "topic": topic,
                    "defaultTopic": "TBW102",
                    "readQueueNums": 9,
                    "perm": 6,
                    "writeQueueNums": 9,
                    "topicFilterType": "SINGLE_TAG",
                    "order": "false",
                }
                body = b'{"topicConfigList":[{"topicName":"%s"}]}' % topic.encode()
                known = broker.parts.topics.find(topic)
                response = await client.call(code, config, body if code == 18 else b"")
                assert response.code == INVALID_PARAMETER, (topic, response)
                assert broker.parts.topics.find(topic) == known

    asyncio.run(scene())


@pytest.mark.finding("A4")
def test_messages_of_internal_topics_cannot_be_read_by_their_offset(tmp_path: Path) -> None:
    async def scene() -> None:
        async with running(small(tmp_path)) as (_, client):
            assert (await client.send("T", b"warm")).code == 0
            assert (await client.pull("T", 0)).code == 0
            far = {"TIMER_DELAY_MS": "3000000"}, {"DELAY": "9"}, {"TRAN_MSG": "true", "PGROUP": "p"}
            for number, properties in enumerate(far):
                sent = await client.send("T", b"secret", UNIQ_KEY=f"U{number}", **properties)
                assert sent.code == 0
                offset = int(sent.fields["msgId"][-16:], 16)
                for code, fields in by_offset(offset, sent.fields["msgId"]):
                    response = await client.call(code, fields)
                    assert response.code in (NO_PERMISSION, SYSTEM_ERROR), (code, response)
                    assert b"secret" not in bytes(response.body), code
                    if code in (33, 36):
                        assert response.code == NO_PERMISSION

    asyncio.run(scene())


def by_offset(offset: int, offset_id: str) -> list[tuple[int, dict[str, int | str]]]:
    return [
        (33, {"offset": offset}),
        (36, {"offset": offset, "group": "g", "delayLevel": 0, "originTopic": "T"}),
        (309, {"consumerGroup": "g", "clientId": "c", "msgId": offset_id, "brokerName": "test"}),
        (323, {"topic": "T", "msgId": offset_id}),
    ]


@pytest.mark.finding("A4")
def test_a_record_inside_a_body_is_read_by_no_request(tmp_path: Path) -> None:
    async def scene() -> None:
        async with running(small(tmp_path)) as (broker, client):
            assert (await client.send("T", b"warm")).code == 0
            assert (await client.pull("T", 0)).code == 0
            for topic in ("T", "%RETRY%g", HALF, "TRANS_CHECK_MAX_TIME_TOPIC"):
                at = broker.store.max_offset + BODY_AT
                planted = encode_record(
                    topic=topic,
                    queue_id=0,
                    body=b"boo",
                    queue_offset=0,
                    phys_offset=at,
                    property_text=b"PGROUP\x01evil\x02REAL_TOPIC\x01../../x\x02REAL_QID\x010\x02",
                    born_ms=1,
                    born_host=LOOPBACK,
                    store_ms=1,
                    store_host=LOOPBACK,
                )
                assert (await client.send("T", planted)).code == 0
                end = broker.store.max_offset
                for code, fields in by_offset(at, encode_offset_id(*LOOPBACK, at)):
                    response = await client.call(code, fields)
                    assert response.code == SYSTEM_ERROR, (topic, code, response)
                response = await client.call(37, end_fields(at))
                assert response.code == SYSTEM_ERROR
                assert broker.store.max_offset == end

    asyncio.run(scene())


def end_fields(offset: int) -> dict[str, str | int]:
    return {
        "producerGroup": "evil",
        "commitLogOffset": offset,
        "tranStateTableOffset": 0,
        "commitOrRollback": 8,
        "fromTransactionCheck": "false",
        "msgId": "X",
        "transactionId": "X",
    }


@pytest.mark.finding("A2")
@pytest.mark.parametrize("code", [10, 310, 320, 325])
def test_a_topic_without_the_permission_to_write_takes_nothing(tmp_path: Path, code: int) -> None:
    """Both ways of a send obey it, the compiled one and the plain one."""

    async def scene() -> None:
        async with running(small(tmp_path)) as (broker, client):
            assert (await client.send("T", b"warm")).code == 0
            read_only = {
                "topic": "T",
                "defaultTopic": "TBW102",
                "readQueueNums": 1,
                "writeQueueNums": 1,
                "perm": 4,
                "topicFilterType": "SINGLE_TAG",
                "order": "false",
            }
            assert (await client.call(17, read_only)).code == 0
            end, fields = broker.store.max_offset, send_fields("T", UNIQ_KEY="U")
            response = await client.call(code, fields if code == 10 else letters(fields), b"x")
            assert (response.code, broker.store.max_offset) == (NO_PERMISSION, end)

    asyncio.run(scene())


@pytest.mark.finding("A2")
def test_offsets_of_the_brokers_own_group_cannot_be_changed(tmp_path: Path) -> None:
    group = "CID_RMQ_SYS_TRANS"

    async def scene() -> None:
        async with running(small(tmp_path)) as (broker, client):
            assert (await client.send("T", b"warm")).code == 0
            broker.parts.offsets.commit(group, HALF, 0, 7)
            requests = [
                (15, {"consumerGroup": group, "topic": "T", "queueId": 0, "commitOffset": 1}),
                (222, {"topic": "T", "group": group, "timestamp": -1, "isForce": "true"}),
                (314, {"srcGroup": "g", "destGroup": group, "topic": "T"}),
                (207, {"groupName": group, "cleanOffset": "true"}),
            ]
            for code, fields in requests:
                response = await client.call(code, fields)
                assert response.code == NO_PERMISSION, (code, response)
            assert broker.parts.offsets.query(group, HALF, 0) == 7

    asyncio.run(scene())


def test_every_internal_topic_has_an_access() -> None:
    names = {value for name, value in vars(topics).items() if name.endswith("_TOPIC")}
    assert names - {topics.TEMPLATE_TOPIC, topics.TRACE_TOPIC} == INTERNAL_TOPICS.keys()


@pytest.mark.parametrize(
    ("name", "access"),
    [
        ("SCHEDULE_TOPIC_XXXX", TopicAccess.NONE),
        ("rmq_sys_anything", TopicAccess.NONE),
        ("DUEMQ_QUARANTINE", TopicAccess.READ),
        ("TRANS_CHECK_MAX_TIME_TOPIC", TopicAccess.READ),
        ("rmq_sys_TRACE_DATA_region", TopicAccess.READ | TopicAccess.WRITE),
        ("RMQ_SYS_TRACE_TOPIC", TopicAccess.READ | TopicAccess.WRITE),
        ("DefaultCluster_REPLY_TOPIC", TopicAccess.READ | TopicAccess.WRITE),
        ("%RETRY%SCHEDULE_TOPIC_XXXX", TopicAccess.READ | TopicAccess.WRITE),
        ("TBW102", TopicAccess.READ | TopicAccess.WRITE),
    ],
)
def test_what_clients_may_do_with_a_topic(name: str, access: TopicAccess) -> None:
    assert client_access(name) == access
    assert is_internal(name) == (access != TopicAccess.READ | TopicAccess.WRITE)
