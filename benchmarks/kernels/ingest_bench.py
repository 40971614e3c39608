"""Kernels that decode send frames and encode responses, without sockets and disk.

python -m benchmarks.kernels.ingest_bench [frames per call]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from duemq.auth.signature import Credentials
from duemq.net import codec
from duemq.send import layout
from duemq.send.grants import Grants
from duemq.send.kernels.ingest import take_sends
from duemq.send.kernels.responses import WAIT_ANY, put_responses
from duemq.send.layout import host_column
from duemq.send.responses import response_text
from duemq_common.request import Request
from message_store.log.batch import PutBatch
from message_store.queues.topic_table import TopicTable

SUFFIX = b"MSG_REGION\x01DefaultRegion\x02CLUSTER\x01DefaultCluster\x02TRACE_ON\x01true\x02"
REPEAT_S = 1.0
CREDENTIALS = Credentials("bench", "bench-secret")


class Bench:
    """Access check with one account (a `SendAccess`)."""

    version = 0

    def __call__(self, request: Request) -> None:
        """Permit everything."""

    def secret(self, access_key: str) -> str:
        """Return the secret."""
        return CREDENTIALS.secret


def frame(opaque: int, credentials: Credentials | None = None) -> bytes:
    """Return the frame of a send of 100 bytes with a delay level, as the Java client encodes it."""
    properties = f"UNIQ_KEY\x017F000001{opaque:024X}\x02WAIT\x01true\x02DELAY\x013\x02"
    values = ("p_bench", "bench", "TBW102", "4", str(opaque % 4), "0", "1700000000000", "0")
    fields = dict(zip(layout.SEND_LETTERS, (*values, properties, "0", "false"), strict=False))
    made = Request(310, fields | {"m": "false"}, b"x" * 100, opaque=opaque)
    return codec.encode_request(made if credentials is None else credentials.sign(made))


def measure(name: str, count: int, work: Callable[[], None]) -> None:
    """Print the time per item in the fastest of several runs of `count` items."""
    work()
    best, start = float("inf"), time.perf_counter()
    while time.perf_counter() - start < REPEAT_S:
        before = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - before)
    each = best / count
    print(f"{name:<36} {each * 1e9:8.0f} ns each {1 / each:12,.0f} /s")


def main(count: int) -> None:
    """Measure both kernels with `count` frames per call."""
    topics = TopicTable()
    topics.set_routing("bench", write_queues=4, read_queues=4, perm=6)
    names = (topics.arrays.topics, topics.arrays.names, topics.arrays.table)
    data = np.frombuffer(b"".join(frame(i) for i in range(count)), np.uint8).copy()
    batch = PutBatch()
    turn = np.zeros(1, layout.TURN)
    turn["store_host"] = host_column(b"\x7f\0\0\1", 10_911)
    state = turn["state"][0]
    state[layout.STATE_FRAME_MAX :] = (1 << 24, 1 << 22, 32_767)
    suffix = np.frombuffer(SUFFIX, np.uint8).copy()
    wire = np.zeros(batch.rows.size, layout.WIRE)
    peer = (b"\x7f\0\0\1", 50_000)
    anyone, grants = Grants(None, topics).sender(peer), Grants(Bench(), topics)
    account = grants.sender(peer)
    grants.extend(account, Request(310, {"b": "bench", "AccessKey": CREDENTIALS.access_key}))
    signed = np.frombuffer(b"".join(frame(i, CREDENTIALS) for i in range(count)), np.uint8).copy()
    into = (batch.rows, wire, batch.staging, suffix, turn)
    output = response_text(
        batch.rows.size, region="DefaultRegion", trace_on=True, broker_name="broker-a"
    )

    def take(data: Any = data, sender: Any = anyone.record) -> None:
        state[layout.STATE_ROWS] = state[layout.STATE_STAGED] = 0
        stop, _ = take_sends(data, 0, data.size, sender, into, names)
        assert stop == layout.STOP_INCOMPLETE
        assert state[layout.STATE_ROWS] == count

    output.turn["count"], output.turn["wait"] = count, WAIT_ANY

    def response() -> None:
        size, _ = put_responses(batch.rows, wire, batch.staging, *names[:2], *output)
        assert size > count * 200

    measure(f"take_sends, {count} a call", count, take)
    measure(f"take_sends, signed, {count} a call", count, lambda: take(signed, account.record))
    measure(f"put_responses, {count} a call", count, response)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 64)
