"""Load of pops and acknowledgements during failures of masters, and a check of all messages.

Each call goes to the member that accepted the previous call; if it fails, to the next member, until
one accepts. The group does not acknowledge the first delivery of every fifth message.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final

from duemq.net.client import RemotingClient
from duemq_common.codes import RequestCode
from duemq_common.request import Request, Response
from tests.support.pop_client import Popped, popped
from tests.support.send_path import send_request

TOPIC: Final = "FailoverPops"
GROUP: Final = "g"
BROKER_NAME: Final = "group"
INVISIBLE_MS: Final = 8_000
ACK_S_MAX: Final = 6.0  # from pop to response; a later response may miss the invisible time
LEFT_EVERY: Final = 5
CALL_S_MAX: Final = 3.0
PAUSE_S: Final = 0.02
DRAIN_S_MAX: Final = 240.0
EMPTY: Final = frozenset({209, 210})  # POLLING_FULL, POLLING_TIMEOUT


class PopLoad:
    """Sender and popping group, which run until `finish`. Messages are identified by numbers.

    Attributes:
        sent: Messages whose send was confirmed.
        acknowledged: Messages whose acknowledgement was confirmed.
        uncertain: Messages whose acknowledgement got no response in time.
        repeated: Messages popped after their acknowledgement was confirmed.
        left: Messages whose first delivery was not acknowledged on purpose.
    """

    def __init__(self, addresses: list[str]) -> None:
        self._clients = itertools.cycle([RemotingClient(each) for each in addresses])
        self._client = next(self._clients)
        self._count = len(addresses)
        self._sends = True
        self.sent: set[int] = set()
        self.acknowledged: set[int] = set()
        self.uncertain: set[int] = set()
        self.repeated: set[int] = set()
        self.left: set[int] = set()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Send and pop while the block is active, then pop the remaining messages."""
        sending = asyncio.create_task(self._send(), name="sender")
        popping = asyncio.create_task(self._pop(), name="pops")
        try:
            yield
            self._sends = False
            await sending
            async with asyncio.timeout(DRAIN_S_MAX):
                while self.sent - self.acknowledged - self.uncertain:
                    assert not popping.done(), popping.exception()
                    await asyncio.sleep(PAUSE_S)
        finally:
            for task in (sending, popping):
                task.cancel()
            await asyncio.gather(sending, popping, return_exceptions=True)
            for _ in range(self._count):
                await next(self._clients).close()

    async def _call(self, request: Request, *good: int) -> Response | None:
        """Return a response with an accepted code; None if none, and switch to the next member."""
        client = self._client
        try:
            response = await client.call(request, timeout_s=CALL_S_MAX)
            if response.code in (0, *good):
                return response
        except OSError:
            pass
        if client is self._client:
            self._client = next(self._clients)
        await asyncio.sleep(PAUSE_S)
        return None

    async def _send(self) -> None:
        for number in itertools.count():
            if not self._sends:
                return
            text = f"UNIQ_KEY\x01{number}\x02"
            request = send_request(
                code=10, body=b"%d" % number, topic=TOPIC, queueId="0", properties=text
            )
            if await self._call(request) is not None:
                self.sent.add(number)
            await asyncio.sleep(PAUSE_S)

    async def _pop(self) -> None:
        fields = {
            "consumerGroup": GROUP,
            "topic": TOPIC,
            "queueId": "-1",
            "maxMsgNums": "8",
            "invisibleTime": str(INVISIBLE_MS),
            "pollTime": "0",
            "bornTime": "0",
            "initMode": "0",
        }
        async with asyncio.TaskGroup() as tasks:
            while True:
                response = await self._call(_request(RequestCode.POP_MESSAGE, fields), *EMPTY)
                found = []
                if response is not None and response.code == 0:
                    found = popped(response, TOPIC, BROKER_NAME)
                for message in found:
                    self._take(message, tasks)
                await asyncio.sleep(PAUSE_S)

    def _take(self, message: Popped, tasks: asyncio.TaskGroup) -> None:
        number = int(message.body)
        if number in self.acknowledged:
            self.repeated.add(number)
        if number % LEFT_EVERY == 0 and number not in self.left:
            self.left.add(number)
        else:
            tasks.create_task(self._acknowledge(message))

    async def _acknowledge(self, message: Popped) -> None:
        """Acknowledge a message, with retries while its handle is valid."""
        fields = {
            "consumerGroup": GROUP,
            "topic": message.real_topic,
            "queueId": str(message.queue_id),
            "offset": str(message.offset),
            "extraInfo": message.handle,
        }
        loop = asyncio.get_running_loop()
        end_s = loop.time() + ACK_S_MAX
        while loop.time() < end_s:
            if await self._call(_request(RequestCode.ACK_MESSAGE, fields)) is not None:
                break
        in_time = self.acknowledged if loop.time() < end_s else self.uncertain
        in_time.add(int(message.body))


def _request(code: RequestCode, fields: Mapping[str, str]) -> Request:
    return Request(code, dict(fields), version=479)
