"""Second master: another broker that is registered with this master's name and the id 0.

    this broker --103--> name server      route of the broker's topic: id 0 is this broker's address
    another one --103--> name server      id 0 is the address of the other one
    this broker --105--> name server      another address: there are two masters

A name server keeps one address per broker id, the one that was registered last. It does not fence:
both masters continue to serve. Without a controller, only the operator can decide which of them is
right, so each of them reports the other one.

Source: RouteInfoManager.registerBroker
"""

from __future__ import annotations

import logging
from typing import Final

from duemq.net import wire_json
from duemq_common.broker_ids import MASTER_ID
from duemq_common.clock import Clock
from duemq_common.codes import RequestCode
from duemq_common.request import Request, Response

log = logging.getLogger(__name__)
CALL_S_MAX: Final = 3.0
GONE_MS: Final = 120_000  # a name server removes a broker after this time without a registration
ADDRESS_CHARS_MAX: Final = 200


class SecondMaster:
    """Report of a second master of one broker name.

    Args:
        address: `host:port` of this broker, as it is registered.
    Attributes:
        failure: Address of the second master and the remedy, as a text; empty: none is known.
    """

    def __init__(self, broker_name: str, address: str, clock: Clock) -> None:
        self._broker_name, self._address, self._clock = broker_name, address, clock
        self._seen_ms = 0
        self._reported = ""  # address of the second master in the last report
        self.failure = ""

    def request(self) -> Request:
        """Return request 105 for the topic that has the name of this broker."""
        return Request(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": self._broker_name})

    def observe(self, name_server: str, response: Response) -> None:
        """Compare the master in the response of a name server with this broker.

        The second master is gone if no name server has returned its address for `GONE_MS`:
        meanwhile, every living broker has registered again.
        """
        address = _master_in(response, self._broker_name)
        now_ms = self._clock.steady_ms()
        if address == self._address:
            if self.failure and now_ms - self._seen_ms >= GONE_MS:
                log.warning("broker %s: the second master is gone", self._broker_name)
                self.failure = self._reported = ""
        elif address:
            self._seen_ms = now_ms
            if address != self._reported:
                self._reported = address
                self.failure = _text(self._broker_name, address, name_server)
                log.error("%s", self.failure)


def _text(broker_name: str, address: str, name_server: str) -> str:
    shown = ascii(address[:ADDRESS_CHARS_MAX])[1:-1]
    return (
        f"two masters: {shown} is also registered as {broker_name} with brokerId=0 (name server "
        f"{name_server}), and both accept messages. Stop one of them; start it again with another "
        f"brokerName, or with brokerRole=SLAVE and an empty store"
    )


def _master_in(response: Response, broker_name: str) -> str:
    """Return the address of id 0 in a route; empty: the response contains none."""
    if response.code:
        return ""
    assert isinstance(response.body, bytes | memoryview)  # as received
    try:
        route = wire_json.parse_object(bytes(response.body))
    except ValueError:
        return ""
    brokers = route.get("brokerDatas")
    for broker in brokers if isinstance(brokers, list) else ():
        if isinstance(broker, dict) and broker.get("brokerName") == broker_name:
            addresses = broker.get("brokerAddrs")
            by_id = addresses if isinstance(addresses, dict) else {}
            address = by_id.get(MASTER_ID, by_id.get(str(MASTER_ID)))
            return address if isinstance(address, str) else ""
    return ""
