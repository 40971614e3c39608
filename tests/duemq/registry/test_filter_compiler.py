"""Filters that requests and heartbeats have."""

from __future__ import annotations

import asyncio
import threading

import pytest

from duemq.filters import Expression, FilterError
from duemq.filters.expression import compiled as compiled_expression
from duemq.registry import filter_compiler
from duemq.registry.filter_compiler import FilterCompiler
from duemq.registry.subscriptions import Subscription, parse_expression
from duemq_common.request import Request, Response

LONG = " OR ".join(f"a = {number}" for number in range(100))


def subscription_of(group: str, topic: str) -> Subscription | None:
    return parse_expression("T", LONG, "SQL92", 1) if (group, topic) == ("G", "T") else None


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(FilterError, match="'SQL99' is neither TAG nor SQL92"):
        FilterCompiler(subscription_of).compile("SQL99", "a = 1")


@pytest.mark.finding("3S7")
@pytest.mark.parametrize(
    ("fields", "compiled"),
    [
        ({"subscription": LONG, "expressionType": "SQL92"}, [LONG]),
        ({"exp": LONG, "expType": "SQL92"}, [LONG]),
        ({"topic": "T", "consumerGroup": "G"}, [LONG]),
        ({"topic": "T", "consumerGroup": "other"}, []),
        ({"subscription": LONG}, []),
        ({"subscription": "a = 1", "expressionType": "SQL92"}, []),
        ({"exp": LONG + " a", "expType": "SQL92"}, [LONG + " a"]),
    ],
)
def test_a_thread_compiles_the_long_filter_of_a_request(
    fields: dict[str, str], compiled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []

    def compile_in_thread(text: str) -> Expression | FilterError:
        assert threading.current_thread() is not threading.main_thread()
        threads.append(text)
        return compiled_expression(text)

    monkeypatch.setattr(filter_compiler, "compiled", compile_in_thread)
    filters = FilterCompiler(subscription_of)

    async def scene() -> list[object]:
        handler = filters.after_compiling(lambda request: Response(remark="handled"))
        found = [handler(Request(11, fields)) for _ in range(2)]
        return [each if isinstance(each, Response) else await each for each in found]

    assert asyncio.run(scene()) == [Response(remark="handled")] * 2
    assert threads == compiled
