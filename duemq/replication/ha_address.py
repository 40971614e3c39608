"""Replication address of a master: request 906, from replicas to masters.

The controller gives a replica the address for clients of its master; the replica requests the
address of the replication port from the master itself.

Source: AdminBrokerProcessor.updateBrokerHaInfo, ExchangeHAInfoResponseHeader
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import ClassVar, Final

from duemq.net.client import RemotingClient
from duemq.net.dispatcher import Handler
from duemq_common.clock import Clock
from duemq_common.codes import RequestCode
from duemq_common.errors import PeerError
from duemq_common.host_port import split_address
from duemq_common.request import Request, Response

CALL_S_MAX: Final = 3.0
HA_ADDRESS: Final = "masterHaAddress"


class HaAddressProcessor:
    """Handler of request 906: a master returns its addresses, a replica an empty response.

    Addresses in the request are ignored. A replica accepts addresses of its master only from a
    name server, the controller or that master: any client can send this request.

    Args:
        address, ha_address: `host:port` of this broker for clients and for replicas.
        max_offset: Returns the end of the log.
        is_master: Whether this broker is a master.
    """

    def __init__(
        self, address: str, ha_address: str, max_offset: Callable[[], int], *, is_master: bool
    ) -> None:
        self._address, self._ha_address = address, ha_address
        self._max_offset, self._is_master = max_offset, is_master

    def handlers(self) -> Mapping[int, Handler]:
        """Return the handler of 906."""
        return {RequestCode.EXCHANGE_BROKER_HA_INFO: self.exchange}

    def exchange(self, request: Request) -> Response:
        """Return the addresses of this broker if it is a master."""
        if not self._is_master:
            return Response()
        fields = {
            HA_ADDRESS: self._ha_address,
            "masterAddress": self._address,
            "masterFlushOffset": str(self._max_offset()),
        }
        return Response(fields=fields)


async def request_ha_address(master: RemotingClient) -> str:
    """Return the replication address `host:port` of the master that the client connects to.

    Raises:
        OSError: The broker cannot be reached, or does not respond within `CALL_S_MAX`.
        PeerError: The broker is not a master now, or its response is malformed.
    """
    response = await master.call(
        Request(RequestCode.EXCHANGE_BROKER_HA_INFO, {}), timeout_s=CALL_S_MAX
    )
    address = (response.fields or {}).get(HA_ADDRESS, "")
    if response.code:
        raise PeerError(
            f"{master.address} refuses the request for its replication port with code "
            f"{response.code}: {response.remark}"
        )
    if not address:
        raise PeerError(f"{master.address} is not a master now: it has no replication port")
    try:
        split_address(address)
    except ValueError as error:
        raise PeerError(f"{master.address} has a malformed replication port: {error}") from None
    return address


class HaAddressFinder:
    """Requests the replication address from a master, every `RETRY_MS` until it succeeds.

    Attributes:
        failure: Reason why the last request failed; empty after a success.
    """

    RETRY_MS: ClassVar[int] = 500

    def __init__(self, master: RemotingClient, clock: Clock) -> None:
        self._master, self._clock = master, clock
        self._stopping = asyncio.Event()
        self.failure = ""

    async def run(self, on_address: Callable[[str], None]) -> None:
        """Request the address and call `on_address` with it; return after that, or after `stop`."""
        async with self._master:
            while not self._stopping.is_set():
                try:
                    on_address(await request_ha_address(self._master))
                except (OSError, PeerError) as error:
                    self.failure = str(error) or f"no response within {CALL_S_MAX:g} s"
                else:
                    self.failure = ""
                    return
                until_ms = self._clock.now_ms() + self.RETRY_MS
                await self._clock.wait(self._stopping, until_ms=until_ms)

    def stop(self) -> None:
        """Make `run` return, also while the master does not respond."""
        self._stopping.set()
        self._master.stop()
