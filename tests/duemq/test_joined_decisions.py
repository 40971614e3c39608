"""Decisions that share batches have the results of requests that come one after the other.

Two topics have the same messages. The requests of one topic are sent at the same time through two
connections, those of its twin one by one. All requests decide alike, and a message has names of one
kind only, so that the order of different batches has no effect.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from duemq.net.decisions import ACTIONS
from duemq_common.clock import FakeClock
from duemq_common.codes import RequestCode
from duemq_common.recall_handle import RecallHandle
from tests.support.running_broker import BrokerClient, connected, running, small

HOUR_MS = 3_600_000
CODES = tuple(ACTIONS)
Call = tuple[int, dict[str, str], dict[str, Any]]
GROUP = 6  # messages with one kind of names


class Twin:
    """One of the topics: its messages, and their names."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.offset_ids: list[str] = []
        self.handles: list[str] = []
        self.unknown: list[str] = []  # handles with another time, or another key

    async def fill(self, remote: BrokerClient, due_ms: int) -> None:
        """Send messages: with ids, keys, handles, and for recalls; some of levels.

        The last one stays pending: it has a handle with another time only, whose result depends on
        whether the message is pending.
        """
        for time_ms, number in ((due_ms + 5_000, 4 * GROUP), (due_ms, 99)):
            handle = RecallHandle(self.topic, "test", str(time_ms), f"U{number}")
            self.unknown.append(handle.encode())
        for number in range(4 * GROUP + 1):
            unique = "B" if number in (1, 2) else f"U{number}"
            delay = {"TIMER_DELIVER_MS": str(due_ms + number)}
            if number % 5 == 4 and number < 2 * GROUP:
                delay = {"DELAY": "18"}
            keys = f"k{number % 3} k{number % 4}" if GROUP <= number < 2 * GROUP else ""
            response = await remote.send(
                self.topic, b"x", UNIQ_KEY=unique, **({"KEYS": keys} if keys else {}), **delay
            )
            assert response.code == 0, response.remark
            fields = response.fields or {}
            self.offset_ids.append(fields["msgId"])
            self.handles.append(fields.get("recallHandle", ""))

    def call(self, kind: str, code: int, picks: list[int], more: Mapping[str, Any]) -> Call:
        """Return a request about some messages."""
        if kind == "recall":
            names = [*self.handles[3 * GROUP : 4 * GROUP], *self.unknown]
            handle = names[picks[0] % len(names)]
            return RequestCode.RECALL_MESSAGE, {"topic": self.topic, "recallHandle": handle}, {}
        body: dict[str, Any] = {"topic": self.topic, **more}
        if kind == "ids":
            one_each = [id_ for n, id_ in enumerate(self.offset_ids[:GROUP]) if n not in (1, 2)]
            names = [*one_each, "U0", "B", "U3", "U5", "absent"]
        elif kind == "keys":
            names = ["k0", "k1", "k2", "k3", "absent"]
        else:
            names = [
                *self.handles[2 * GROUP : 3 * GROUP],
                RecallHandle(self.topic, "test", "7", f"U{2 * GROUP}").encode(),
                RecallHandle(self.topic, "else", "7", f"U{2 * GROUP}").encode(),
                RecallHandle(f"not{self.topic}", "test", "7", f"U{2 * GROUP}").encode(),
                self.handles[2 * GROUP][:9],
                "",
            ]
        body[kind] = [names[pick % len(names)] for pick in picks]
        return code, {}, body


async def answer(remote: BrokerClient, call: Call) -> Any:
    """Return what a response reports, without names that differ between the twins."""
    code, fields, body = call
    response = await remote.call(code, fields, json.dumps(body).encode() if body else b"")
    if not body:
        return response.code, response.remark, (response.fields or {}).get("msgId")
    assert response.code == 0, response.remark
    results = json.loads(bytes(response.body))["results"]
    named = [*body.get("ids", []), *body.get("keys", []), *body.get("handles", [])]
    assert [result.pop("name") for result in results] == named
    for result in results:  # of two names of one message, one is moved first
        result.pop("former_due_ms", None)
    return results


def reported(made: Sequence[Sequence[Any]], results: Sequence[Any], kind: str) -> list[str]:
    """Return the results of requests of a kind, sorted."""
    chosen = [result for each, result in zip(made, results, strict=True) if each[0] == kind]
    return sorted(
        str(one) for result in chosen for one in (result if kind != "recall" else [result])
    )


def calls(chance: random.Random) -> list[tuple[str, int, list[int], dict[str, Any]]]:
    """Return requests of one action."""
    code = chance.choice(CODES)
    more: dict[str, Any] = {"delay_ms": 60_000} if code == RequestCode.MOVE_PENDING else {}
    if chance.random() < 0.2:
        more["dry_run"] = True
    if chance.random() < 0.2:
        more["until_ms"] = chance.choice([0, 1 << 50])
    made = []
    for _ in range(40):
        kind = chance.choice(["ids", "keys", "handles", "recall"])
        count = chance.choice([1, 1, 4]) if kind == "handles" else 1
        made.append((kind, code, [chance.randrange(1_000) for _ in range(count)], more))
    return made


def test_joined_and_separate_requests_have_the_same_results(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)

    async def work() -> None:
        clock = FakeClock()
        config = small(tmp_path, recallMessageEnable="true", maxIndexNum="100000")
        async with running(config, clock=clock) as (broker, one), connected(broker.address) as two:
            for code in (*CODES, RequestCode.RECALL_MESSAGE):
                await one.call(code)  # the first one of each waits for its kernels
            for number in range(8):
                twins = Twin(f"A{number}"), Twin(f"B{number}")
                due_ms = clock.now_ms() + HOUR_MS
                for twin in twins:
                    await twin.fill(one, due_ms)
                made = calls(chance)
                # Keys share messages: the first request has them.
                peers = [one if each[0] == "keys" else chance.choice([one, two]) for each in made]
                joined = await asyncio.gather(
                    *(
                        answer(peer, twins[0].call(*each))
                        for peer, each in zip(peers, made, strict=True)
                    )
                )
                alone = [await answer(one, twins[1].call(*each)) for each in made]
                for kind in ("ids", "keys", "handles", "recall"):
                    found, expected = (reported(made, each, kind) for each in (joined, alone))
                    assert found == expected, f"seed {seed}, round {number}, {made[0]}"

    asyncio.run(work())
