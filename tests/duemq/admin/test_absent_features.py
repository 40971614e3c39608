"""Requests about parts that this broker does not have: refused with a reason, or nothing to do."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import pytest

from duemq.admin.absent_features import REASONS, AbsentFeatures
from duemq_common.clock import FakeClock
from duemq_common.codes import RequestCode
from duemq_common.request import Request, RequestHandler, Response
from tests.support.running_broker import running, small


class Rig:
    def __init__(
        self, *, is_master: bool = True, has_controller: bool = False, has_accounts: bool = False
    ) -> None:
        self.saved = 0
        self.handlers: Mapping[int, RequestHandler] = AbsentFeatures(
            self.save, is_master=is_master, has_controller=has_controller, has_accounts=has_accounts
        ).handlers()

    async def save(self) -> None:
        self.saved += 1

    def call(self, code: int, **fields: str) -> Response:
        async def main() -> Response | None:
            return await self.handlers[code](Request(code, fields))

        response = asyncio.run(main())
        assert response is not None
        return response


@pytest.mark.finding("3C8")
@pytest.mark.parametrize(
    "code", [353, 354, 513, 2001, 2002, 2003, 2004, 5001, 200_070, 200_074, 200_079]
)
def test_a_refusal_has_code_3_and_the_reason(code: int) -> None:
    response = Rig().call(code)
    assert response.code == 3
    assert REASONS[RequestCode(code)] in (response.remark or "")
    assert f"request type {code} (" in (response.remark or "")


def test_tables_are_written_before_an_export_is_answered() -> None:
    rig = Rig()
    response = rig.call(355, configType="topics;subscriptionGroups")
    assert (response.code, response.remark, rig.saved) == (0, "export done.", 1)


def test_the_flush_offset_of_a_master_is_its_own() -> None:
    assert Rig().call(908, masterFlushOffset="0").code == 0
    assert Rig(is_master=False).call(908, masterFlushOffset="0").code == 3


def test_nothing_of_pop_is_outside_of_the_log() -> None:
    assert Rig().call(200_056).code == 0


def test_epochs_need_a_controller() -> None:
    response = Rig().call(1007)
    assert (response.code, response.remark) == (1, "this request only for controllerMode ")
    assert 1007 not in Rig(has_controller=True).handlers


def test_a_broker_answers_them(tmp_path: Path) -> None:
    async def main() -> dict[int, int]:
        async with running(small(tmp_path)) as (_, client):
            return {code: (await client.call(code)).code for code in (355, 513, 908, 1007, 200_056)}

    assert asyncio.run(main()) == {355: 0, 513: 3, 908: 0, 1007: 1, 200_056: 0}


def test_an_export_has_the_offsets(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(small(tmp_path), clock=FakeClock()) as (broker, client):
            assert (await client.send("T", b"a")).code == 0
            broker.parts.offsets.commit("g", "T", 0, 1)
            requested = {"configType": "consumerOffsets"}
            assert (
                await client.call(RequestCode.EXPORT_ROCKSDB_CONFIG_TO_JSON, requested)
            ).code == 0
            table = (tmp_path / "store/config/consumerOffset.json").read_text()
            assert '"T@g":{0:1' in "".join(table.split())

    asyncio.run(main())
