"""Decoded sends: the sends of one loop turn are one batch, each has its own response."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from duemq.send.decoded_sends import STAGED_BYTES_MAX, DecodedSends
from duemq.send.layout import ROWS_MAX
from duemq.send.responses import DecodedSend, MustWait
from duemq_common.codes import RequestCode, ResponseCode
from duemq_common.errors import RequestError
from duemq_common.request import Request, Response
from message_store.log.batch import PutBatch

HOST = (bytes(4), 0)


class Rig:
    """Fakes of put path, sender and responses around `sends`.

    Attributes:
        batches: Bodies of each batch.
        refused: Bodies whose sends are refused.
        missing: Bodies whose topic does not exist yet.
        waiting: Bodies whose responses wait until they are confirmed.
    """

    def __init__(self) -> None:
        fake: Any = self
        self.sends = DecodedSends(fake, fake, fake)
        self.batches: list[list[bytes]] = []
        self.refused: set[bytes] = set()
        self.missing: dict[bytes, Callable[[], Awaitable[None]]] = {}
        self.waiting: set[bytes] = set()
        self.confirmed: list[int] = []

    # Of the put path.

    def put(self, batch: PutBatch) -> None:
        rows = batch.filled
        self.batches.append(
            [
                batch.staging[row["body_pos"] : row["body_pos"] + row["body_len"]].tobytes()
                for row in rows
            ]
        )

    # Of the sender.

    def fill(self, request: Request, host: tuple[bytes, int], batch: PutBatch) -> DecodedSend:
        assert host == HOST
        if prepare := self.missing.get(request.body):
            batch.stage(b"half a row")
            raise MustWait(prepare)
        row = batch.add(
            topic_index=0,
            queue_id=0,
            body=request.body,
            properties=b"",
            born_ms=0,
            born_host=(bytes(4), 0),
            store_host=(bytes(4), 0),
        )
        if request.body in self.refused:
            raise RequestError(ResponseCode.MESSAGE_ILLEGAL, "refused")
        return DecodedSend(row, 1, row, None)

    # Of the answering.

    def response(self, batch: PutBatch, send: DecodedSend) -> Response:
        return Response(fields={"row": str(send.first)})

    def waits(self, batch: PutBatch, send: DecodedSend, response: Response) -> bool:
        return self.batches[-1][send.first] in self.waiting

    def refusal(self, error: Exception, request: Request) -> Response:
        return Response(code=ResponseCode.MESSAGE_ILLEGAL, remark=str(error))

    async def completed(self, response: Response, send: DecodedSend, *, waits: bool) -> Response:
        assert waits
        self.confirmed.append(send.first)
        return response

    async def send(self, body: bytes) -> Response:
        return await self.sends.send(Request(RequestCode.SEND_MESSAGE, {}, body))


def responses(rig: Rig, *bodies: bytes) -> list[Response]:
    async def main() -> list[Response]:
        return await asyncio.gather(*map(rig.send, bodies))

    return asyncio.run(main())


def test_sends_of_one_turn_are_one_batch() -> None:
    rig = Rig()
    found = responses(rig, b"a", b"b", b"c")
    assert [each.fields for each in found] == [{"row": "0"}, {"row": "1"}, {"row": "2"}]
    responses(rig, b"d")
    assert rig.batches == [[b"a", b"b", b"c"], [b"d"]]


def test_a_refused_send_adds_no_row() -> None:
    rig = Rig()
    rig.refused = {b"b"}
    first, refused, last = responses(rig, b"a", b"b", b"c")
    assert (first.code, refused.code, last.code) == (0, ResponseCode.MESSAGE_ILLEGAL, 0)
    assert rig.batches == [[b"a", b"c"]]


def test_a_turn_without_valid_sends_appends_nothing() -> None:
    rig = Rig()
    rig.refused = {b"a"}
    responses(rig, b"a")
    assert rig.batches == []


def test_a_send_whose_topic_is_created_is_in_a_later_batch() -> None:
    rig = Rig()

    async def prepare() -> None:
        del rig.missing[b"b"]

    rig.missing = {b"b": prepare}
    found = responses(rig, b"a", b"b", b"c")
    assert [each.code for each in found] == [0, 0, 0]
    assert rig.batches == [[b"a", b"c"], [b"b"]]


def test_a_send_whose_topic_cannot_be_created_is_refused() -> None:
    rig = Rig()

    async def prepare() -> None:
        raise RequestError(ResponseCode.TOPIC_NOT_EXIST, "no")

    rig.missing = {b"b": prepare}
    _, refused = responses(rig, b"a", b"b")
    assert refused.code == ResponseCode.MESSAGE_ILLEGAL
    assert rig.batches == [[b"a"]]


def test_a_response_waits_until_its_message_is_confirmed() -> None:
    rig = Rig()
    rig.waiting = {b"b"}
    responses(rig, b"a", b"b")
    assert rig.confirmed == [1]


@pytest.mark.parametrize(
    ("bodies", "sizes"),
    [
        ([b"x"] * (ROWS_MAX + 1), [ROWS_MAX, 1]),
        ([bytes(STAGED_BYTES_MAX // 2)] * 4, [3, 1]),
    ],
    ids=["rows", "bytes"],
)
def test_rows_and_bytes_of_a_batch_are_bounded(bodies: list[bytes], sizes: list[int]) -> None:
    rig = Rig()
    responses(rig, *bodies)
    assert [len(batch) for batch in rig.batches] == sizes


def test_a_cancelled_send_is_not_stored() -> None:
    rig = Rig()

    async def main() -> None:
        gone, other = (asyncio.create_task(rig.send(body)) for body in (b"gone", b"other"))
        asyncio.get_running_loop().call_soon(gone.cancel)
        assert (await other).code == 0
        assert gone.cancelled()

    asyncio.run(main())
    assert rig.batches == [[b"other"]]
