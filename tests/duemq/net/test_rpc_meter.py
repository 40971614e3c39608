"""The RPC meter: latency and requests in flight, whatever a handler does."""

from __future__ import annotations

import asyncio
from typing import Any

from duemq.net.dispatcher import Dispatcher, Handler
from duemq.net.meters import RpcMeter, names_of
from duemq_common.clock import FakeClock
from duemq_common.errors import RequestError
from duemq_common.request import Request, Response


class Scene:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.meter = RpcMeter(self.clock)

    async def handle(self, handler: Handler, request: Request) -> Response | None:
        found = Dispatcher({request.code: handler}, meter=self.meter).begin(request)
        return found if isinstance(found, Response) else await found

    def noted(self) -> dict[Any, tuple[float, float]]:
        """Return by names how many requests there were, and their milliseconds."""
        return {names_of(key)[:4]: (buckets[-1][1], ms) for key, buckets, ms in self.meter.ms}


def request(code: int, *, oneway: bool = False) -> Request:
    return Request(code, {"topic": "T"}, oneway=oneway)


def test_answers_failures_and_one_way_requests() -> None:
    scene = Scene()

    async def slow(request: Request) -> Response:
        scene.clock.advance(7)
        if request.body:
            raise RequestError(17, "no topic")
        return Response()

    async def main() -> None:
        await scene.handle(slow, request(14))
        await scene.handle(slow, request(14, oneway=True))
        response = await scene.handle(slow, Request(14, {}, b"x"))
        assert response is not None
        assert response.code == 17

    asyncio.run(main())
    code = "query_consumer_offset"
    assert scene.noted() == {
        (code, "success", "false", "success"): (1, 7),
        (code, "success", "false", "oneway"): (1, 7),
        (code, "topic_not_exist", "false", "success"): (1, 7),
    }


def test_pulls_that_are_held() -> None:
    scene = Scene()
    release = asyncio.Event()

    async def held() -> Response:
        await release.wait()
        scene.clock.advance(1_000)
        return Response(19)

    def begin(request: Request) -> Any:
        return Response(0) if request.body else held()

    async def main() -> None:
        assert await scene.handle(begin, Request(11, {}, b"x")) == Response(0)
        waiting = asyncio.ensure_future(scene.handle(begin, request(11)))
        await asyncio.sleep(0)
        assert scene.meter.in_flight()["pull"] == 1
        release.set()
        await waiting
        assert set(scene.meter.in_flight().values()) == {0}

    asyncio.run(main())
    assert scene.noted() == {
        ("pull_message", "success", "false", "success"): (1, 0),
        ("pull_message", "pull_not_found", "true", "success"): (1, 1_000),
    }


def test_sends_are_noted_by_the_batch() -> None:
    scene = Scene()
    since_ms = scene.clock.now_ms()
    scene.clock.advance(3)
    scene.meter.sends(10, 2, since_ms)
    assert scene.noted() == {
        ("send_message_v2", "success", "false", "success"): (8, 24),
        ("send_message_v2", "system_error", "false", "success"): (2, 6),
    }


def test_creation_of_topics_is_timed() -> None:
    scene = Scene()

    async def create(request: Request) -> Response:
        scene.clock.advance(50)
        return Response(1 if request.body else 0)

    async def main() -> None:
        await scene.handle(create, request(17))
        await scene.handle(create, Request(17, {}, b"x"))

    asyncio.run(main())
    assert {labels: ms for labels, _, ms in scene.meter.creates_ms[17]} == {
        ("success",): 50,
        ("failure",): 50,
    }


def test_requests_that_are_answered_together_are_counted_each() -> None:
    clock = FakeClock()
    meter = RpcMeter(clock)
    since_ms = meter.start()
    clock.advance(3)
    meter.together(200_051, 0, 5, since_ms)
    meter.together(200_051, 208, 1, since_ms)
    meter.together(200_051, 0, 2, since_ms + 10)  # the clock was set back
    found = {labels: (int(buckets[-1][1]), total) for labels, buckets, total in meter.ms}
    assert found == {(200_051, 0, False, False): (7, 15), (200_051, 208, False, False): (1, 3)}
