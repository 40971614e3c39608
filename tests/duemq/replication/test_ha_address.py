"""Request 906 between a replica and its master."""

from __future__ import annotations

import asyncio

import pytest

from duemq.net.client import RemotingClient
from duemq.replication.ha_address import HaAddressFinder, HaAddressProcessor, request_ha_address
from duemq_common.clock import FakeClock
from duemq_common.codes import RequestCode
from duemq_common.errors import PeerError
from duemq_common.request import Request, Response

ADDRESS, HA_ADDRESS, LOG_END = "10.0.0.1:10911", "10.0.0.1:10912", 4_711


def processor(*, is_master: bool = True) -> HaAddressProcessor:
    return HaAddressProcessor(ADDRESS, HA_ADDRESS, lambda: LOG_END, is_master=is_master)


class Master(RemotingClient):
    """A client whose server is a processor."""

    def __init__(self, response: Response) -> None:
        super().__init__(ADDRESS)
        self._response = response

    async def call(self, request: Request, *, timeout_s: float = 3.0) -> Response:
        assert request.code == RequestCode.EXCHANGE_BROKER_HA_INFO
        return self._response


def test_a_master_names_its_addresses() -> None:
    response = processor().exchange(Request(906, {}))
    assert response.fields == {
        "masterHaAddress": HA_ADDRESS,
        "masterAddress": ADDRESS,
        "masterFlushOffset": str(LOG_END),
    }
    assert asyncio.run(request_ha_address(Master(response))) == HA_ADDRESS


def test_a_replica_names_none_and_takes_none() -> None:
    forged = Request(906, {"masterHaAddress": "10.6.6.6:1", "masterAddress": "10.6.6.6:2"})
    response = processor(is_master=False).exchange(forged)
    assert (response.code, response.fields) == (0, None)


@pytest.mark.parametrize(
    ("response", "why"),
    [
        (Response(), "not a master"),
        (Response(code=16, remark="no permission"), "code 16: no permission"),
        (Response(fields={"masterHaAddress": "nonsense"}), "malformed"),
    ],
)
def test_an_answer_without_an_address_is_an_error(response: Response, why: str) -> None:
    with pytest.raises(PeerError, match=why):
        asyncio.run(request_ha_address(Master(response)))


class BusyMaster(Master):
    """A master that does not respond to the first request."""

    def __init__(self, failure: Exception) -> None:
        super().__init__(Response(fields={"masterHaAddress": HA_ADDRESS}))
        self._failures = [failure]

    async def call(self, request: Request, *, timeout_s: float = 3.0) -> Response:
        if self._failures:
            raise self._failures.pop()
        return await super().call(request)


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        (ConnectionRefusedError("refused"), "refused"),
        (TimeoutError(), "no response within 3 s"),
    ],
)
def test_a_failed_request_is_repeated_and_its_reason_is_shown(
    failure: Exception, reason: str
) -> None:
    async def main() -> None:
        clock, addresses = FakeClock(), list[str]()
        finder = HaAddressFinder(BusyMaster(failure), clock)
        run = asyncio.create_task(finder.run(addresses.append))
        for _ in range(20):
            await asyncio.sleep(0)
        assert (finder.failure, addresses) == (reason, [])
        clock.advance(finder.RETRY_MS)
        await asyncio.wait_for(run, 30)
        assert (finder.failure, addresses) == ("", [HA_ADDRESS])

    asyncio.run(main())


class HangingMaster(Master):
    """A master that does not respond until the client is stopped."""

    def __init__(self) -> None:
        super().__init__(Response())
        self.requested, self._stops = asyncio.Event(), asyncio.Event()

    async def call(self, request: Request, *, timeout_s: float = 3.0) -> Response:
        self.requested.set()
        await self._stops.wait()
        raise ConnectionResetError("stopped")

    def stop(self) -> None:
        super().stop()
        self._stops.set()


def test_a_stop_does_not_wait_for_a_master_that_hangs() -> None:
    async def main() -> None:
        master = HangingMaster()
        finder = HaAddressFinder(master, FakeClock())
        run = asyncio.create_task(finder.run(lambda address: None))
        await master.requested.wait()
        finder.stop()
        await asyncio.wait_for(run, 30)

    asyncio.run(main())
