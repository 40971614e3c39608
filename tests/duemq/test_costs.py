"""Processor time of every request code with expensive bodies of 1 MB.

Each body is of a family that was the most expensive one of some code in a search of 60 families of
bodies and 600 header fields. An account without rights may use 20 ms of the event loop, others
100 ms in one step.

Most of the longest steps decode a body, and need memory that the process did not have before. A
host that provides pages slowly delays them several times as much as the references of
`processor_time`: a step longer than the limit may therefore take as long as three decodings of its
body at the same time. One decoding of the most expensive body takes 31 ms.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Generator
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

import pytest

from duemq.auth.accounts import Accounts
from duemq.auth.audit import AuditLog
from duemq.auth.gate import Gate, GateRules
from duemq.auth.model import User
from duemq.auth.signature import Credentials
from duemq.broker.broker import Broker
from duemq.namesrv.config import NamesrvConfig
from duemq.namesrv.server import NameServer
from duemq.net.dispatcher import Dispatcher
from duemq_common.clock import FakeClock
from duemq_common.errors import RequestError
from duemq_common.request import Request, Response
from tests.support.extended import one_in
from tests.support.fakes import FakePeer
from tests.support.processor_time import ROUNDS, cost_ms, time_factor
from tests.support.running_broker import small

pytestmark = pytest.mark.finding("3S7")
MB: Final = 1 << 20
UNPRIVILEGED_MS_MAX, STEP_MS_MAX = 20.0, 100.0
DECODINGS_MAX = 3.0
ABSENT = Credentials("absent", "absent-secret")
FIELDS = {
    **{"topic": "T", "consumerGroup": "g", "group": "g", "groupName": "g", "queueId": "0"},
    **{"key": "k" * 100_000, "maxNum": "64", "beginTimestamp": "0", "endTimestamp": "9"},
    **{"offset": "0", "count": "9", "index": "0", "clientID": "c", "brokerName": "test"},
}


def listed(item: str, count: int) -> str:
    return "[" + ",".join(item.replace("#", str(number)) for number in range(count)) + "]"


def of_mb(item: str) -> str:
    return listed(item, MB // (len(item) + 5))


@cache
def request_bodies() -> dict[str, bytes]:
    """Return the bodies of requests by name; they are large, so no import makes them."""
    texts = {
        "keys": "{" + of_mb('"#":1')[1:-1] + "}",
        "objects": of_mb("{}"),
        "spaces": " " * MB,
        "brackets": "[" * MB,
        "escapes": '"' + r"\u0061" * (MB // 6) + '"',
        "lines": "a=b\n" * (MB // 4),
        "consumers": '{"clientID":"c","consumerDataSet":' + of_mb('{"groupName":"g#"}') + "}",
        "subscriptions": '{"clientID":"c","consumerDataSet":[{"groupName":"g",'
        + '"subscriptionDataSet":'
        + of_mb('{"topic":"T#","subString":"*"}')
        + "}]}",
        "queues": '{"consumerGroup":"g","clientId":"c","mqSet":'
        + listed('{"topic":"T#","brokerName":"b","queueId":#}', 8_192)
        + "}",
        "acks": '{"brokerName":"test","acks":' + of_mb('{"c":"g","t":"T#","q":0}') + "}",
        "handles": '{"topic":"T","handles":' + of_mb('"djEgVCBiIDEgMTIz#"') + "}",
        "tables": '{"topicConfigTable":{' + of_mb('"t#":{"topicName":"t#","perm":6}')[1:-1] + "}}",
    }
    return {name: text.encode() for name, text in texts.items()}


def route_bodies() -> dict[str, bytes]:
    """Return the bodies of requests of a name server by name."""
    tables = of_mb('"t#":{"topicName":"t#","perm":6,"readQueueNums":1}')[1:-1]
    texts = {
        "registrations": '{"topicConfigSerializeWrapper":{"dataVersion":{},"topicConfigTable":{'
        + tables
        + "}}}",
        "brokers": '{"queueDatas":' + of_mb('{"brokerName":"b#","perm":6}') + "}",
    }
    return {name: text.encode() for name, text in texts.items()}


NAMESRV_FIELDS = {
    **{"brokerAddr": "127.0.0.1:1", "brokerId": "0", "clusterName": "c", "cluster": "c"},
    **{"namespace": "n", "value": "v", "haServerAddr": "127.0.0.1:2"},
}


@pytest.mark.parametrize(
    "code", one_in(3, [25, 34, 41, 42, 46, 200, 400, 9_011, 9_012, 9_013, 200_151])
)
def test_an_account_without_rights_costs_little(code: int) -> None:
    accounts = Accounts({"absent": User("absent", "absent-secret")})
    gate = Gate(accounts, GateRules(cluster="c", authorize=True), AuditLog(lambda: 0))
    for name, body in request_bodies().items():
        request = ABSENT.sign(Request(code, dict(FIELDS), body, version=479))
        request.peer = FakePeer()

        def check(request: Request = request) -> None:
            try:
                gate(request)
            except RequestError:
                return

        assert cost_ms(check, enough_ms=UNPRIVILEGED_MS_MAX) <= UNPRIVILEGED_MS_MAX, name


class Steps:
    """Awaitable that measures the longest step of another one on the event loop.

    Attributes:
        longest_s: Processor time of the longest step.
    """

    def __init__(self, work: Awaitable[Response | None]) -> None:
        self._work, self.longest_s = work, 0.0

    def __await__(self) -> Generator[Any, None, None]:
        steps = self._work.__await__()
        advance = partial(next, steps)
        while True:
            begin_s = time.thread_time()
            try:
                pause = advance()
            except StopIteration:
                return
            finally:
                self.longest_s = max(self.longest_s, time.thread_time() - begin_s)
            try:
                yield pause
                advance = partial(next, steps)
            except BaseException as error:
                advance = partial(steps.throw, error)


def test_no_request_occupies_the_event_loop(tmp_path: Path) -> None:
    async def scene() -> dict[tuple[int, str], float]:
        async with Broker(small(tmp_path, enablePropertyFilter="true")) as broker:
            return await long_steps(broker.parts.dispatcher, FIELDS, request_bodies())

    assert asyncio.run(scene()) == {}


def test_no_request_occupies_a_name_server() -> None:
    async def scene() -> dict[tuple[int, str], float]:
        dispatcher = Dispatcher(NameServer(NamesrvConfig(), FakeClock()).handlers())
        bodies = request_bodies() | route_bodies()
        return await long_steps(dispatcher, FIELDS | NAMESRV_FIELDS, bodies)

    assert asyncio.run(scene()) == {}


def test_a_step_longer_than_its_limit_is_a_long_step() -> None:
    async def handle(request: Request) -> Response:
        for _ in range(8):
            json.loads(request.body)
        return Response()

    async def scene() -> dict[tuple[int, str], float]:
        bodies = {name: request_bodies()[name] for name in ("keys", "lines")}
        return await long_steps(Dispatcher({1: handle}), {}, bodies)

    assert list(asyncio.run(scene())) == [(1, "keys")]


async def long_steps(
    dispatcher: Any, fields: dict[str, str], bodies: dict[str, bytes]
) -> dict[tuple[int, str], float]:
    """Return the longest step in ms of each request that occupies the loop, by code and body."""
    steps_ms = {}
    for code in sorted(dispatcher):
        factor = time_factor()
        for name, body in bodies.items():
            request = Request(code, dict(fields), body, peer=FakePeer())
            longest_ms, limit_ms = await longest_step(dispatcher, request, factor)
            if longest_ms > limit_ms:
                steps_ms[code, name] = longest_ms
    return steps_ms


async def longest_step(dispatcher: Any, request: Request, factor: float) -> tuple[float, float]:
    """Return the longest step of a request and its limit, in ms of the reference machine.

    Each is the least of `ROUNDS` measurements, in which the request and the decoding of its body
    alternate.

    Args:
        factor: See `time_factor`; a request of half of `STEP_MS_MAX` is not repeated.
    """
    longest: list[float] = []
    decodings: list[float] = []
    for _ in range(ROUNDS):
        begin_s = time.thread_time()
        work = dispatcher.begin(request)
        took_s = time.thread_time() - begin_s
        if not isinstance(work, Response):
            steps = Steps(work)
            try:
                async with asyncio.timeout(1):
                    await steps
            except TimeoutError:
                pass
            took_s = max(took_s, steps.longest_s)
        longest.append(took_s)
        if took_s * factor <= STEP_MS_MAX / 2:
            break
        decodings.append(decoding_s(request.body))
    limit_ms = max(STEP_MS_MAX, DECODINGS_MAX * factor * min(decodings, default=0.0))
    return factor * min(longest), limit_ms


def decoding_s(body: bytes) -> float:
    """Return the processor time in which a body is decoded, or found to be no JSON."""
    begin_s = time.thread_time()
    with suppress(ValueError, RecursionError):
        json.loads(body)
    return time.thread_time() - begin_s
