"""Replication address of a master: request 906, answered by masters and sent by replicas.

A replica knows the address of its master from the controller; where that master listens for
replicas only the master knows.
Source: AdminBrokerProcessor.updateBrokerHaInfo, ExchangeHAInfoResponseHeader
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import ClassVar, Final

from delivery.plugin import Request, Response
from duemq.net.client import RemotingClient, split_address
from duemq.net.codes import RequestCode
from duemq.net.dispatcher import Handler
from message_store.clock import Clock
from message_store.errors import PeerError

CALL_S_MAX: Final = 3.0
HA_ADDRESS: Final = "masterHaAddress"


class HaAddressProcessor:
    """Answers 906 with the addresses of this master; a replica answers without addresses.

    An address in the request is ignored: a replica takes its master's addresses from the name
    server or the controller, never from a stranger.

    Args:
        address, ha_address: `host:port` for clients and for replicas.
        max_offset: Returns the end of the log.
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
        """Answer 906."""
        if not self._is_master:
            return Response()
        fields = {
            HA_ADDRESS: self._ha_address,
            "masterAddress": self._address,
            "masterFlushOffset": str(self._max_offset()),
        }
        return Response(fields=fields)


async def ask_ha_address(master: RemotingClient) -> str:
    """Return the replication address of the master that the client connects to.

    Raises:
        OSError: It cannot be reached.
        PeerError: It is not a master now, or its answer is malformed.
    """
    answer = await master.call(
        Request(RequestCode.EXCHANGE_BROKER_HA_INFO, {}), timeout_s=CALL_S_MAX
    )
    address = (answer.fields or {}).get(HA_ADDRESS, "")
    if answer.code:
        raise PeerError(
            f"{master.address} does not name its replication port: code {answer.code}, "
            f"{answer.remark}"
        )
    if not address:
        raise PeerError(f"{master.address} is not a master (yet): it names no replication port")
    try:
        split_address(address)
    except ValueError as error:
        raise PeerError(f"{master.address} names a malformed replication port: {error}") from None
    return address


class HaAddressFinder:
    """Asks a master for its replication address until it names one.

    Attributes:
        failure: Why the last question failed; empty once the address is known.
    """

    RETRY_MS: ClassVar[int] = 500

    def __init__(self, master: RemotingClient, clock: Clock) -> None:
        self._master, self._clock = master, clock
        self._stopping = asyncio.Event()
        self.failure = ""

    async def run(self, found: Callable[[str], None]) -> None:
        """Call `found` with the address once it is known; return then, or after `stop`."""
        async with self._master:
            while not self._stopping.is_set():
                try:
                    found(await ask_ha_address(self._master))
                except (OSError, PeerError) as error:
                    self.failure = str(error) or "no answer in time"
                else:
                    self.failure = ""
                    return
                until_ms = self._clock.now_ms() + self.RETRY_MS
                await self._clock.wait(self._stopping, until_ms=until_ms)

    def stop(self) -> None:
        """Make `run` return."""
        self._stopping.set()
