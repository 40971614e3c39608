"""Sessions of the HTTP thread."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import pytest

from duemq.client.admin.cluster import BrokerMember
from duemq.client.errors import Refused
from duemq.http.sessions import AccountSession
from duemq_common.codes import ResponseCode
from duemq_common.request import Response

PROGRAM = """
import asyncio, sys
from duemq.http.sessions import Sessions

async def main():
    async with Sessions(lambda credentials: None):
        former = set(sys.modules)
        from anyio import create_task_group
        async with create_task_group():
            print(len(set(sys.modules) - former))

asyncio.run(main())
"""


def test_the_first_response_imports_nothing() -> None:
    """Deliveries wait during imports; the port does not listen yet then."""
    command = [sys.executable, "-c", PROGRAM]
    run = subprocess.run(command, check=True, capture_output=True, text=True)
    assert run.stdout == "0\n"


REFUSED = Response(ResponseCode.NO_PERMISSION, "no")
ACCEPTED, AWAY = Response(), ConnectionError()


class Brokers(AccountSession):
    """Session whose brokers respond as given."""

    def __init__(self, responses: list[Response | Exception]) -> None:
        self.client: Any = self
        self._responses = responses

    async def masters(self) -> list[BrokerMember]:
        return [BrokerMember("C", f"b{n}", 0, str(n)) for n in range(len(self._responses))]

    async def call(self, address: str, code: int, **request: Any) -> Response:
        response = self._responses[int(address)]
        if isinstance(response, Exception):
            raise response
        return response


@pytest.mark.parametrize("responses", [[ACCEPTED], [REFUSED, ACCEPTED], [ACCEPTED, AWAY], [AWAY]])
def test_an_account_that_one_broker_accepts_is_no_failed_login(responses: list[Any]) -> None:
    asyncio.run(Brokers(responses).check_account())


@pytest.mark.parametrize("responses", [[REFUSED], [REFUSED, REFUSED], [REFUSED, AWAY]])
def test_an_account_that_no_broker_accepts_is_refused(responses: list[Any]) -> None:
    with pytest.raises(Refused, match="no"):
        asyncio.run(Brokers(responses).check_account())
