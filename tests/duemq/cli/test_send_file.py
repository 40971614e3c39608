"""`duemq send --from`: lost messages are sent again, once, however often the command runs."""

from __future__ import annotations

import asyncio
import base64
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from duemq.cli.message_file import REPAIR_FORMAT, read_file
from duemq.client.admin import Admin
from duemq.client.client import Client
from duemq.client.errors import Refused
from duemq_common.clock import SystemClock
from duemq_common.codes import RequestCode, ResponseCode
from duemq_common.errors import UsageError
from duemq_common.request import Response
from message_store.log.properties import encode_properties
from tests.support.commands import Running, duemq, start
from tests.support.wait_until import until

HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    running = start(tmp_path_factory.mktemp("broker"), timerWheelEnable="true")
    yield running
    running.stop()


def line(number: int, due_ms: int | None, **more: Any) -> str:
    text = {"UNIQ_KEY": f"ID{number}", "KEYS": "k", "TIMER_OUT_MS": "5", "REAL_TOPIC": "R"}
    value = {
        "store": "/s",
        "phys_offset": 100 + number,
        "topic": "Repaired",
        "queue_id": 0,
        "unique_id": f"ID{number}",
        "due_ms": due_ms,
        "why": "lost",
        "property_text": base64.b64encode(encode_properties(text)).decode(),
        "body": base64.b64encode(b"body %d" % number).decode(),
    }
    return json.dumps(value | more)


def written(path: Path, *lines: str, head: str = json.dumps({"format": REPAIR_FORMAT})) -> Path:
    path.write_text("\n".join([head, *lines]) + "\n")
    return path


def counts(broker: Running, file: Path, *words: str) -> dict[str, Any]:
    ran = duemq("send", "--from", str(file), "--json", *words, *broker.where)
    assert ran.returncode == 0, ran.stderr
    *lines, found = [json.loads(text) for text in ran.stdout.splitlines()]
    assert Counter(one["what"] for one in lines) == Counter(
        {name: count for name, count in found.items() if name != "dry_run" and count}
    )
    return dict(found)


def test_a_file_is_sent_once(broker: Running, tmp_path: Path) -> None:
    later_ms = SystemClock().now_ms() + HOUR_MS
    file = written(
        tmp_path / "f", line(1, 5), line(2, None), line(3, later_ms), line(4, 5, unique_id=None)
    )
    dry = {"dry_run": True, "send": 3, "exists": 0, "no unique id": 1}
    assert counts(broker, file) == dry
    assert counts(broker, file) == dry  # nothing was sent
    assert counts(broker, file, "--yes") == dry | {"dry_run": False}
    again = {"send": 0, "exists": 3, "no unique id": 1}
    assert counts(broker, file, "--yes") == again | {"dry_run": False}
    got = duemq(
        "consume",
        "Repaired",
        "--from-first",
        "--count",
        "2",
        "--wait",
        "60",
        "--json",
        *broker.where,
    )
    found = {json.loads(text)["body"]: json.loads(text) for text in got.stdout.splitlines()}
    assert set(found) == {"body 1", "body 2"}
    properties = found["body 1"]["properties"]
    assert (properties["UNIQ_KEY"], properties["KEYS"]) == ("ID1", "k")
    assert "TIMER_OUT_MS" not in properties


def test_a_message_in_quarantine_is_sent_once(broker: Running, tmp_path: Path) -> None:
    topic = ("topic", "create", "Removed")
    assert duemq(*topic, *broker.where).returncode == 0
    sent = duemq("send", "Removed", "body 9", "--at", "+1h", "--json", *broker.where)
    stored = json.loads(sent.stdout)
    unique_id, phys_offset = stored["message_id"], int(stored["offset_message_id"][-16:], 16)
    assert duemq("topic", "delete", "Removed", "--yes", *broker.where).returncode == 0
    fire = ("timers", "fire", "--topic", "Removed", "--yes")
    assert duemq(*fire, *broker.where).returncode == 0

    def quarantined() -> bool:
        listed = duemq("quarantine", "list", "--topic", "Removed", "--json", *broker.where)
        return len(json.loads(listed.stdout)) == 1

    until(quarantined, seconds=60, what="the message is in quarantine")
    assert duemq(*topic, *broker.where).returncode == 0
    text = base64.b64encode(encode_properties({"UNIQ_KEY": unique_id})).decode()
    own = {"topic": "Removed", "unique_id": unique_id, "phys_offset": phys_offset}
    own["property_text"] = text
    file = written(tmp_path / "f", line(9, 5, **own))
    none = {"dry_run": False, "send": 0, "exists": 0, "no unique id": 0}
    assert counts(broker, file, "--yes") == none | {"send": 1}
    got = duemq("consume", "Removed", "--from-first", "--count", "1", "--wait", "60", *broker.where)
    assert "body 9" in got.stdout
    assert counts(broker, file, "--yes") == none | {"exists": 1}
    resend = ("quarantine", "resend", "--all", "--from-topic", "Removed", "--yes", "--json")
    resent = duemq(*resend, *broker.where)
    assert [each["result"] for each in json.loads(resent.stdout)["results"]] == ["already sent"]


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        (["{"], ":2: not an output"),
        (['{"topic": "T"}'], ":2: not an output of"),
        ([line(1, 5), line(2, 5, body="!")], ":3: not an output"),
        ([line(1, 5, phys_offset="x")], ":2:"),
    ],
)
def test_a_damaged_line_is_named(lines: list[str], why: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=why):
        list(read_file(written(tmp_path / "f", *lines)))


@pytest.mark.parametrize("head", ["", "[]", '{"format": "other"}'])
def test_another_file_is_refused(head: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=":1: not an output of `duemq reconcile repair`"):
        list(read_file(written(tmp_path / "f", line(1, 5), head=head)))


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "cannot be read: No such file or directory"),
        (b"", "is empty: not an output of `duemq reconcile repair`"),
        (b"\xff\xfe\x00", ":1: not an output of `duemq reconcile repair`"),
    ],
)
def test_what_is_no_such_file_is_a_usage_error(
    content: bytes | None, why: str, tmp_path: Path
) -> None:
    file = tmp_path / "f"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(UsageError) as raised:
        list(read_file(file))
    assert f"{file} {why}".replace(" :", ":") in str(raised.value)


class Refusing(Client):
    """One broker that answers every question with one code."""

    def __init__(self, code: int) -> None:
        super().__init__(broker="127.0.0.1:1")
        self.code, self.requests = code, list[int]()

    async def call(self, address: str, code: int, *more: Any, **words: Any) -> Response:
        self.requests.append(code)
        return Response(self.code, "the index is being built")


@pytest.mark.parametrize(
    ("code", "found"), [(ResponseCode.QUERY_NOT_FOUND, []), (ResponseCode.SYSTEM_ERROR, None)]
)
def test_where_nobody_can_look_nothing_is_sent(code: int, found: list[Any] | None) -> None:
    client = Refusing(code)
    admin = Admin(client=client)
    if found is None:
        with pytest.raises(Refused, match="the index is being built"):
            asyncio.run(admin.records_by_id("127.0.0.1:1", "T", "ID1"))
    else:
        assert asyncio.run(admin.records_by_id("127.0.0.1:1", "T", "ID1")) == found
    assert client.requests == [RequestCode.QUERY_MESSAGE]


def test_a_message_needs_a_topic_and_a_body() -> None:
    ran = duemq("send", "T")
    assert ran.returncode == 2
    assert "give a topic and a body, or --from FILE" in ran.stderr


@pytest.mark.parametrize("words", [("T",), ("T", "body"), ("", "body"), ("T", "-")])
def test_a_file_and_a_message_of_ones_own_are_not_sent_together(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    file = written(tmp_path / "lost.jsonl")
    ran = duemq("send", *words, "--from", str(file), "--yes", "--broker", "127.0.0.1:1")
    assert ran.returncode == 2
    message = " ".join(ran.stderr.split())
    assert "omit TOPIC and BODY to resend its messages, or omit --from to send" in message


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--at", "+90s"), "--at"),
        (("--level", "3", "--tag", "A"), "--level, --tag"),
        (("--key", "k"), "--key"),
        (("--count", "2", "--queue", "0"), "--count, --queue"),
    ],
)
def test_what_a_file_names_cannot_be_said_otherwise(
    tmp_path: Path, words: tuple[str, ...], named: str
) -> None:
    file = written(tmp_path / "lost.jsonl")
    ran = duemq("send", *words, "--from", str(file), "--yes", "--broker", "127.0.0.1:1")
    assert ran.returncode == 2
    message = " ".join(ran.stderr.split())
    assert f"contains the properties of its messages: omit {named}" in message
