"""Half messages with a delay: refused at the send when no commit could store them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.support.running_broker import running, small

HALF = {"TRAN_MSG": "true", "PGROUP": "p", "UNIQ_KEY": "U"}


def responses(root: Path, **properties: str) -> tuple[int, int, int | None]:
    """Return the answers to a plain send and to a half message, and whether a commit is stored."""

    async def scene() -> tuple[int, int, int | None]:
        async with running(small(root)) as (broker, client):
            assert (await client.send("T", b"warm")).code == 0
            plain = await client.send("T", b"x", **properties)
            half = await client.send("T", b"x", **HALF, **properties)
            if half.code:
                assert broker.store.queue_bounds("RMQ_SYS_TRANS_HALF_TOPIC", 0) == (0, 0)
                return plain.code, half.code, None
            end = {
                "producerGroup": "p",
                "commitOrRollback": 8,
                "fromTransactionCheck": "false",
                "commitLogOffset": int(half.fields["msgId"][-16:], 16),
                "tranStateTableOffset": half.fields["queueOffset"],
                "msgId": "U",
            }
            return plain.code, half.code, (await client.call(37, end)).code

    return asyncio.run(scene())


@pytest.mark.finding("A18")
@pytest.mark.parametrize(
    "properties",
    [
        {"DELAY": "abc"},
        {"DELAY": "99999999999"},
        {"TIMER_DELAY_SEC": "99999999"},
        {"TIMER_DELIVER_MS": "soon"},
        {"TIMER_DELIVER_MS": str(1 << 61)},
    ],
    ids=str,
)
def test_a_half_message_that_no_commit_can_store_is_refused_like_a_plain_send(
    tmp_path: Path, properties: dict[str, str]
) -> None:
    assert responses(tmp_path, **properties) == (13, 13, None)


@pytest.mark.parametrize(
    "properties",
    [
        {},
        {"DELAY": "0"},
        {"DELAY": "3"},
        {"DELAY": "99"},
        {"TIMER_DELAY_MS": "60000"},
        {"TIMER_DELIVER_MS": "5"},
    ],
    ids=str,
)
def test_a_half_message_whose_delay_can_be_kept_is_taken_and_committed(
    tmp_path: Path, properties: dict[str, str]
) -> None:
    assert responses(tmp_path, **properties) == (0, 0, 0)
