"""Filters that heartbeats register."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from duemq.filters import Expression, FilterError
from duemq.filters.expression import compiled as compiled_expression
from duemq.registry import filter_table
from duemq.registry.filter_table import FilterTable
from duemq.registry.subscriptions import Subscription, parse_expression
from duemq_common.request import Request, Response


def wanted(expression: str, version: int = 1, topic: str = "T") -> Subscription:
    return parse_expression(topic, expression, "SQL92", version)


def state(table: FilterTable, topic: str = "T") -> tuple[Any, ...] | None:
    found = table.find(topic, "G")
    if found is None:
        return None
    return found.expression, found.version, table.compiled(found) is not None


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([[wanted("a = 1")]], ("a = 1", 1, True)),
        ([[wanted("a =")]], ("a =", 1, False)),
        ([[wanted("")]], None),
        ([[wanted("a = 1"), wanted("b = 1", topic="U")]], ("a = 1", 1, True)),
        ([[wanted("a = 1", 2)], [wanted("b = 1", 1)]], ("a = 1", 2, True)),
        ([[wanted("a = 1", 2)], [wanted("b = 1", 2)]], ("a = 1", 2, True)),
        ([[wanted("a = 1", 2)], [wanted("b = 1", 3)]], ("b = 1", 3, True)),
        ([[wanted("a = 1", 2)], [wanted("b =", 3)]], ("b =", 3, False)),
        ([[wanted("a = 1", 2)], [wanted("a = 1", 3)]], ("a = 1", 3, True)),
        ([[wanted("a = 1")], []], None),
        ([[wanted("a = 1", 2)], [], [wanted("b = 1", 1)]], ("b = 1", 1, True)),
        ([[wanted("a = 1")], [], [wanted("a = 1")]], ("a = 1", 1, True)),
        ([[wanted("a = 1")], [], [wanted("a = 1", 2)]], ("a = 1", 2, True)),
        ([[wanted("a = 1")], [parse_expression("T", "*")]], ("a = 1", 1, True)),
    ],
)
def test_heartbeats_decide(steps: Any, expected: Any) -> None:
    table = FilterTable()
    for step in steps:
        table.register("G", step)
    assert state(table) == expected


def test_a_group_without_members_has_no_filters() -> None:
    table = FilterTable(filters_max=2)
    table.register("G", [wanted("a = 1"), wanted("b = 1", topic="U")])
    table.register("G", ())
    assert state(table) is state(table, "U") is None
    table.register("G", [wanted("a = 1", topic="V"), wanted("b = 1", topic="W")])
    assert state(table, "V") == ("a = 1", 1, True)
    assert state(table, "W") == ("b = 1", 1, True)


def test_filters_are_bounded() -> None:
    table = FilterTable(filters_max=1)
    table.register("G", [wanted("a = 1", topic="U"), wanted("b = 1")])
    assert (state(table), state(table, "U") is None) == (None, False)
    table = FilterTable(chars_max=5)
    table.register("G", [wanted("a = 10")])
    assert state(table) is None
    table.register("G", [wanted("a = 1")])
    table.register("G", [wanted("b = 1", 2)])
    assert state(table) == ("b = 1", 2, True)


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(FilterError, match="'SQL99' is neither TAG nor SQL92"):
        FilterTable().compile("SQL99", "a = 1")


LONG = " OR ".join(f"a = {number}" for number in range(100))


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

    monkeypatch.setattr(filter_table, "compiled", compile_in_thread)
    table = FilterTable()
    table.register("G", [wanted(LONG)])

    async def scene() -> list[object]:
        handler = table.after_compiling(lambda request: Response(remark="handled"))
        found = [handler(Request(11, fields)) for _ in range(2)]
        return [each if isinstance(each, Response) else await each for each in found]

    assert asyncio.run(scene()) == [Response(remark="handled")] * 2
    assert threads == compiled
