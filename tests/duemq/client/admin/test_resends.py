"""Dead letters that are sent again: in few requests, each once, at brokers of both kinds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from duemq.client import Admin, Client
from duemq.client.admin.dead_letters import RESENT, DeadLetter, dead_letter
from duemq.client.admin.messages import QUERY_COUNT
from duemq.client.admin.resends import ResendOptions
from duemq.client.admin.topic_page import topic_page
from duemq.client.admin.topics import TopicSettings
from duemq.client.message import MessageQueue, ReceivedMessage
from duemq_common.codes import RequestCode, ResponseCode
from duemq_common.request import Request, Response
from message_store.log.record import Record, encode_record
from tests.support.running_broker import TIMEOUT_S, running, small
from tests.support.scripted_server import reply, route_to, scripted

Run = Callable[..., Any]
COUNT = 150
PLACE = (b"\x7f\0\0\1", 10_911)


def letter(number: int, **changes: Any) -> DeadLetter:
    """Return a dead letter of topic `T`, with a body that names it."""
    properties = {"UNIQ_KEY": f"{number:032X}", "DLQ_ORIGIN_TOPIC": "T", "color": "blue"}
    properties |= changes.pop("properties", {})
    text = "".join(f"{name}\x01{value}\x02" for name, value in properties.items())
    values: dict[str, Any] = {
        "total_size": 200,
        "magic": 0,
        "body_crc": 0,
        "queue_id": 0,
        "flag": number,
        "queue_offset": number,
        "phys_offset": number * 200,
        "sys_flag": 0,
        "born_ms": 0,
        "born_host": PLACE,
        "store_ms": 1,
        "store_host": PLACE,
        "reconsume_times": 16,
        "prepared_offset": 0,
        "body": b"%d" % number,
        "topic": "%DLQ%g",
        "property_text": text.encode(),
    }
    record = Record(**values | changes)
    return dead_letter("g", ReceivedMessage(record, MessageQueue("%DLQ%g", "test", 0)))


class Counted:
    """Counts of the requests of a client, by code."""

    def __init__(self, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
        self.codes = Counter[int]()
        request = client.request

        def counted(code: int, fields: dict[str, str], body: bytes = b"") -> Request:
            self.codes[code] += 1
            return request(code, fields, body)

        monkeypatch.setattr(client, "request", counted)

    def taken(self) -> Counter[int]:
        """Return the counts since the last call."""
        codes, self.codes = self.codes, Counter()
        return codes


async def copies_of(admin: Admin, topic: str = "T") -> dict[bytes, tuple[str, int, str]]:
    """Return unique id, flag and color of each message of a topic, by body."""
    page = await topic_page(admin.client, topic, admin.client.broker, count=10_000)
    rows = {
        one.body: (one.message_id, one.record.flag, one.properties["color"])
        for one in page.messages
    }
    assert len(rows) == len(page.messages)
    return rows


def test_a_page_of_letters_takes_few_requests(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with (
            running(small(tmp_path, mappedFileSizeCommitLog="1048576")) as (broker, _),
            Admin(broker=broker.address, timeout_s=TIMEOUT_S) as admin,
        ):
            await admin.create_topic("T", TopicSettings(read_queues=2, write_queues=2))
            letters = [letter(number) for number in range(COUNT)]
            counted = Counted(admin.client, monkeypatch)
            planned = await admin.resend(letters, dry_run=True)
            assert {one.status for one in planned} == {"would be sent"}
            few = {RequestCode.GET_TOPIC_CONFIG: 1, RequestCode.FIND_COPIES: 1}
            assert counted.taken() == few

            sent = await admin.resend(letters[: COUNT // 2])
            assert {one.status for one in sent} == {"sent"}
            assert counted.taken()[RequestCode.SEND_BATCH_MESSAGE] == 2
            rest = await admin.resend(letters)  # at once, before the index has them
            statuses = ["already sent"] * (COUNT // 2) + ["sent"] * (COUNT - COUNT // 2)
            assert [one.status for one in rest] == statuses
            codes = counted.taken()
            assert codes[RequestCode.SEND_BATCH_MESSAGE] == 2
            assert RequestCode.SEND_MESSAGE_V2 not in codes
            assert await copies_of(admin) == {
                b"%d" % number: (f"{number:032X}", number, "blue") for number in range(COUNT)
            }

    run(main())


def test_letters_with_one_id_are_sent_once(run: Run, tmp_path: Path) -> None:
    """Messages of a Java client's batch share the id of the batch in their dead letters."""

    async def main() -> None:
        async with (
            running(small(tmp_path, mappedFileSizeCommitLog="1048576")) as (broker, _),
            Admin(broker=broker.address, timeout_s=TIMEOUT_S) as admin,
        ):
            await admin.create_topic("T", TopicSettings(read_queues=2, write_queues=2))
            letters = [letter(n, properties={"UNIQ_KEY": "batch"}) for n in range(COUNT)]
            await admin.resend(letters[:100])
            statuses = [one.status for one in await admin.resend(letters)]
            assert statuses == ["already sent"] * 100 + ["sent"] * 50
            assert len(await copies_of(admin)) == COUNT

    run(main())


def test_a_letter_that_is_refused_stops_no_other_one_of_its_batch(run: Run, tmp_path: Path) -> None:
    long = letter(1, properties={"note": "x" * 40_000})
    broken = letter(2, properties={"no\x01te": "x"})

    async def main() -> None:
        async with (
            running(small(tmp_path)) as (broker, _),
            Admin(broker=broker.address, timeout_s=TIMEOUT_S) as admin,
        ):
            await admin.create_topic("T", TopicSettings(read_queues=1, write_queues=1))
            results = await admin.resend([letter(0), long, letter(3)])
            assert [one.status for one in results] == ["sent", "refused", "sent"]
            assert results[1].remark
            assert sorted(await copies_of(admin)) == [b"0", b"3"]
            nowhere = await admin.resend([broken, letter(4)], ResendOptions(topic="%bad name"))
            assert {one.status for one in nowhere} == {"refused"}

    run(main())


def test_letters_that_no_batch_can_have_are_sent_alone(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    letters = [
        letter(0, properties={"__SHARDINGKEY": "s"}),
        letter(1, sys_flag=1, body=b"compressed"),
        letter(2),
        letter(3, total_size=2 << 20),
        letter(4, total_size=2 << 20),
    ]

    async def main() -> None:
        async with (
            running(small(tmp_path)) as (broker, _),
            Admin(broker=broker.address, timeout_s=TIMEOUT_S) as admin,
        ):
            await admin.create_topic("T", TopicSettings(read_queues=1, write_queues=1))
            counted = Counted(admin.client, monkeypatch)
            results = await admin.resend(letters)
            assert {one.status for one in results} == {"sent"}
            codes = counted.taken()
            assert codes[RequestCode.SEND_MESSAGE_V2] == 2
            assert codes[RequestCode.SEND_BATCH_MESSAGE] == 3

    run(main())


def test_pages_of_large_messages_are_shorter(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duemq.client.admin.topic_page.PAGE_BYTES_MAX", 1)

    async def main() -> None:
        async with (
            running(small(tmp_path)) as (broker, _),
            Admin(broker=broker.address, timeout_s=TIMEOUT_S) as admin,
        ):
            await admin.create_topic("T", TopicSettings(read_queues=1, write_queues=1))
            await admin.resend([letter(number) for number in range(40)])
            cursor: str | None = ""
            bodies: list[bytes] = []
            pages = 0
            while cursor is not None:
                page = await topic_page(
                    admin.client, "T", broker.address, cursor=cursor, count=1_000
                )
                bodies += [one.body for one in page.messages]
                cursor, pages = page.cursor, pages + 1
            assert bodies == [b"%d" % number for number in range(40)]
            assert pages > 1

    run(main())


def cluster_of(address: str) -> Response:
    """Return the response of a name server with one broker."""
    group = {"brokerName": "test", "brokerAddrs": {"0": address}}
    return Response(body=msgspec.json.encode({"brokerAddrTable": {"test": group}}))


class ApacheBroker:
    """Responses of a broker that has one copy, and does not know the search for many.

    Attributes:
        codes: Codes of the requests.
    """

    def __init__(self, copy: bytes) -> None:
        self.codes = Counter[int]()
        self.copy = copy
        self.address = ""

    def __call__(self, request: Request) -> bytes:
        self.codes[request.code] += 1
        return reply(request, self._response(request))

    def _response(self, request: Request) -> Response:
        match request.code:
            case RequestCode.GET_ROUTEINFO_BY_TOPIC:
                return route_to(self.address)
            case RequestCode.GET_BROKER_CLUSTER_INFO:
                return cluster_of(self.address)
            case RequestCode.LOCK_BATCH_MQ:
                return Response(body=b'{"lockOKMQSet":[{"topic":"%DLQ%g"}]}')
            case RequestCode.UNLOCK_BATCH_MQ:
                return Response()
            case RequestCode.QUERY_MESSAGE:
                if request.fields["key"] == f"{1:032X}":
                    return Response(body=self.copy)
                return Response(ResponseCode.QUERY_NOT_FOUND, "none")
            case RequestCode.SEND_MESSAGE_V2:
                return Response(fields={"msgId": "m", "queueId": "0", "queueOffset": "0"})
        return Response(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "not supported")


def test_an_apache_broker_is_asked_for_each_letter(run: Run) -> None:
    async def main() -> None:
        marks = {RESENT: letter(1).offset_message_id}
        apache = ApacheBroker(encode_record(letter(1, topic="T", properties=marks).record))
        async with scripted(apache) as address, Admin(address, timeout_s=TIMEOUT_S) as admin:
            apache.address = address
            letters = [letter(number) for number in range(40)]
            results = await admin.resend(letters)
            expected = ["sent", "already sent", *["sent"] * 38]
            assert [one.status for one in results] == expected
            assert apache.codes[RequestCode.FIND_COPIES] == 1
            assert apache.codes[RequestCode.QUERY_MESSAGE] == 40
            assert apache.codes[RequestCode.SEND_MESSAGE_V2] == 39
            assert apache.codes[RequestCode.SEND_BATCH_MESSAGE] == 0

    run(main())


def test_an_apache_broker_may_have_more_copies_than_it_returns(run: Run) -> None:
    async def main() -> None:
        record = encode_record(letter(1, topic="T").record)
        apache = ApacheBroker(record * QUERY_COUNT)
        async with scripted(apache) as address, Admin(address, timeout_s=TIMEOUT_S) as admin:
            apache.address = address
            results = await admin.resend([letter(0), letter(1)])
            assert [one.status for one in results] == ["sent", "refused"]
            assert "does not return all messages with its id" in results[1].remark

    run(main())


def test_without_a_response_nothing_is_sent(run: Run) -> None:
    """It is not known which letters were sent before."""
    codes = Counter[int]()

    def silent(request: Request) -> bytes | None:
        codes[request.code] += 1
        if request.code == RequestCode.GET_BROKER_CLUSTER_INFO:
            return reply(request, cluster_of("127.0.0.1:1"))
        return None

    async def main() -> None:
        async with scripted(silent) as address, Admin(address) as admin:
            [result] = await admin.resend([letter(0)])
            assert result.status == "no response"
            assert result.remark.startswith("not sent: 127.0.0.1:1 does not respond")
            assert codes == {RequestCode.GET_BROKER_CLUSTER_INFO: 1}

    run(main())
