"""Trace contexts in property texts: which are found, and which are sampled."""

from __future__ import annotations

import pytest

from duemq.broker.tracing.contexts import TraceContext, sampled_contexts

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED = f"00-{TRACE}-{SPAN}-01"
CONTEXT = TraceContext(int(TRACE, 16), int(SPAN, 16))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (f"traceparent\x01{SAMPLED}\x02", True),
        (f"UNIQ_KEY\x01k\x02traceparent\x01{SAMPLED}\x02WAIT\x01true\x02", True),
        (f"UNIQ_KEY\x01k\x02traceparent\x01{SAMPLED}", True),
        (f"TRACE_CONTEXT\x01{SAMPLED}\x02", True),
        (f"traceparent\x0100-{TRACE}-{SPAN}-03\x02", True),
        (f"traceparent\x0100-{TRACE}-{SPAN}-00\x02", False),
        (f"traceparent\x0100-{TRACE}-{SPAN}-02\x02", False),
        (f"traceparent\x0100-{'0' * 32}-{SPAN}-01\x02", False),
        (f"traceparent\x0100-{TRACE}-{'0' * 16}-01\x02", False),
        (f"traceparent\x01ff-{TRACE}-{SPAN}-01\x02", False),
        (f"traceparent\x0100-{TRACE.upper()}-{SPAN}-01\x02", False),
        (f"other\x01{SAMPLED}\x02", False),
        (f"traceparent{SAMPLED}", False),
        ("", False),
    ],
)
def test_contexts_that_producers_sample(text: str, found: bool) -> None:
    contexts = [context for _, context in sampled_contexts(text.encode())]
    assert contexts == ([CONTEXT] if found else [])


def test_positions_are_those_of_the_values() -> None:
    text = f"a\x01b\x02traceparent\x01{SAMPLED}\x02".encode() * 2
    positions = [position for position, _ in sampled_contexts(memoryview(text))]
    assert [text[position + 1 :].startswith(b"00-") for position in positions] == [True, True]


def test_a_ratio_selects_the_same_traces_everywhere() -> None:
    ids = range(0, 1 << 64, 1 << 54)
    assert sum(TraceContext(each, 1).is_within(0.25) for each in ids) == 256
    assert not TraceContext(0, 1).is_within(0)
    assert TraceContext((1 << 64) - 1, 1).is_within(1)
