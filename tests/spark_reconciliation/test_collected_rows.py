"""Rows that the driver gets: numbers, aggregates and first rows, however large a store is."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.many_findings import fill_late, write_unknown
from spark_reconciliation.audit.aggregated_audit import FINDINGS_MAX
from tests.support.commands import duemq_process
from tests.test_house_rules import TOP, name_of, nodes_of

CALLS = {"collect", "toPandas", "toArrow"}
BOUNDED = {
    ("audit/aggregated_audit.py", "aggregate_verdicts"): "a row for each lateness, rounded",
    ("audit/summary.py", "summarize"): "a row for each lateness, rounded, and reason",
    ("audit/verdicts.py", "_roles_and_topics"): "a row for each role, topic and queue",
    ("incremental/next_state.py", "RareFacts.of"): "of the engine of this process only",
    ("incremental/next_state.py", "known_queues"): "of the engine of this process only",
    ("jobs/outside.py", "_summary"): "a row for each outcome, and some of each",
    ("jobs/replicas.py", "compare_groups"): "a row for each store",
    ("scan/ownership_tables.py", "read_journals"): "ranges and routes of migrations",
}
"""Results of a bounded number of rows by their grouping, with the reason."""


def is_bounded(receiver: ast.expr) -> bool:
    """Return whether a frame has a limit, or is the aggregate of all rows."""
    names: list[str] = []
    while isinstance(receiver, ast.Call | ast.Attribute):
        if isinstance(receiver, ast.Attribute):
            names.append(receiver.attr)
            receiver = receiver.value
        else:
            receiver = receiver.func
    return "limit" in names or (bool(names) and names[0] == "agg" and "groupBy" not in names)


def functions_of(tree: ast.Module) -> Iterator[tuple[str, ast.AST]]:
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            methods = (one for one in node.body if isinstance(one, ast.FunctionDef))
            yield from ((f"{node.name}.{method.name}", method) for method in methods)
        elif isinstance(node, ast.FunctionDef):
            yield node.name, node


def values_of(function: ast.AST) -> dict[str, ast.expr]:
    """Return the expressions of names that are assigned once."""
    values: dict[str, ast.expr] = {}
    for node in nodes_of(function):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            values[node.targets[0].id] = node.value
    return values


def collected(source: str) -> Iterator[tuple[str, int]]:
    """Yield (function, line) of results without a visible bound."""
    for name, function in functions_of(ast.parse(source)):
        values = values_of(function)
        for node in nodes_of(function):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            receiver = node.func.value
            if isinstance(receiver, ast.Name):
                if receiver.id == "gc":
                    continue
                receiver = values.get(receiver.id, receiver)
            if node.func.attr in CALLS and not is_bounded(receiver):
                yield name, node.lineno


def places() -> dict[tuple[str, str], str]:
    """Return each function with an unbounded result, and where it is."""
    package = TOP / "spark_reconciliation"
    files = [path for path in package.rglob("*.py") if package / "local" not in path.parents]
    files += sorted((TOP / "duemq" / "cli").glob("reconcile*.py"))
    return {
        (short(path), function): f"{name_of(path)}:{line}"
        for path in files
        for function, line in collected(path.read_text())
    }


def short(path: Path) -> str:
    return name_of(path).removeprefix("spark_reconciliation/")


def test_the_driver_collects_bounded_results_only() -> None:
    unbounded = places()
    wrong = [place for key, place in unbounded.items() if key not in BOUNDED]
    assert not wrong, "use limit, an aggregate or toLocalIterator, or name the bound here"
    assert set(BOUNDED) == set(unbounded), "entries without a result"


def test_results_that_the_rule_finds() -> None:
    found = {
        "a.collect()": True,
        "a.where(b).toPandas()": True,
        "a.groupBy('x').agg(y).collect()": True,
        "a.limit(9).collect()": False,
        "a.agg(y).collect()": False,
        "a.toLocalIterator()": False,
        "gc.collect()": False,
        "c.collect()": False,
        "d.toArrow()": True,
    }
    for call, is_found in found.items():
        source = f"def one():\n    c = a.agg(b)\n    d = a.where(b)\n    return {call}\n"
        assert bool(list(collected(source))) == is_found, call


def audit(*words: str) -> dict[str, Any]:
    """Return the result of an audit whose driver has room for few rows."""
    room = ("--engine", "spark", "--conf", "spark.driver.maxResultSize=1m")
    ran = duemq_process("reconcile", "run", *words, *room, "--ledger", "none", "--json")
    assert ran.returncode == 1, ran.stderr
    result: dict[str, Any] = json.loads(ran.stdout)
    return result


@pytest.mark.extended
@pytest.mark.spark
@pytest.mark.parametrize("count", [FINDINGS_MAX // 2, FINDINGS_MAX + 20_000])
def test_many_findings_of_one_topic(tmp_path: Path, count: int) -> None:
    fill_late(tmp_path / "store", count)
    result = audit(str(tmp_path / "store"))
    assert result["verdicts"] == {"late": count}
    assert [row["alike"] for row in result["offenders"]] == [count] * 3


@pytest.mark.extended
@pytest.mark.spark
def test_many_messages_that_only_the_producer_has(tmp_path: Path) -> None:
    fill_late(tmp_path / "store", 100)
    write_unknown(tmp_path / "sent.parquet", 100_000)
    result = audit(str(tmp_path / "store"), "--sent", str(tmp_path / "sent.parquet"))
    [proof] = result["outside"]
    assert proof["outcomes"] == {"never_accepted": 100_000}
    assert len(proof["examples"]) == 3
