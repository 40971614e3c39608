"""Every condition of the audit's joins is needed: without it verdicts of random stores differ."""

from __future__ import annotations

import sys
import types
from operator import attrgetter
from typing import Any, Final

import pytest
from pyspark import cloudpickle

from spark_reconciliation.audit import chains, histories, origins, plain_histories, tally, verdicts
from spark_reconciliation.audit import rules as judging
from spark_reconciliation.audit.audit_config import AuditConfig
from tests.support.audit_rows import AuditTables
from tests.support.naive_audit import naive_audit
from tests.support.random_histories import RandomStore

pytestmark = [pytest.mark.spark, pytest.mark.extended]
STORES = 150
MUTATIONS: Final = {  # dropped condition: module, text, replacement
    "rolls by identity": (
        origins,
        'join(before, ["store_id", "identity", "turn", "place"], "left")',
        'join(before.drop("identity"), ["store_id", "turn", "place"], "left")',
    ),
    "deliveries by identity": (
        origins,
        'join(pending.drop("places"), ["store_id", "identity", "place"])',
        'join(pending.drop("places", "identity"), ["store_id", "place"])',
    ),
    "rolls by turn": (
        origins,
        '["store_id", "identity", "turn", "place"]',
        '["store_id", "identity", "place"]',
    ),
    "deliveries by store": (
        origins,
        'made = deliveries.join(pending.drop("places"), ["store_id", "identity", "place"])',
        'made = deliveries.join(pending.drop("places", "store_id"), ["identity", "place"])',
    ),
    "markers by slot": (
        origins,
        'join(names, ["store_id", "name_hash", "out_ms"])',
        'join(names.drop("out_ms"), ["store_id", "name_hash"])',
    ),
    "markers by name": (
        origins,
        'join(names, ["store_id", "name_hash", "out_ms"])',
        'join(names.drop("name_hash"), ["store_id", "out_ms"])',
    ),
    "ended ones are not pending": (origins, '"left_anti"', '"left_semi"'),
    "markers behind their timer": (
        origins,
        'made.where(F.col("found") < F.col("phys_offset"))\n    return made.withColumn('
        '"origin", F.col("found")).select(*markers',
        'made\n    return made.withColumn("origin", F.col("found")).select(*markers',
    ),
    "chains to their end": (chains, "if not above.any()", "if True"),
    "roots of copies": (verdicts, '"root": F.coalesce("root", "key")', '"root": F.col("key")'),
    "touched ones are not plain": (
        verdicts,
        'plain.join(self.touched, "key", "left_anti")',
        "plain",
    ),
    "cancels before the copy": (histories, ' | (position < F.col("first_copy"))', " | F.lit(True)"),
    "cancels before the end": (
        histories,
        '(F.col("cancelled_at") < F.col("ended_at"))',
        "F.lit(True)",
    ),
    "marks behind the delivery": (
        histories,
        'F.col("marked_at") > F.col("sent.at")',
        "F.lit(True)",
    ),
    "target": (plain_histories, 'F.coalesce("target", F.lit(0)) != 0', "F.lit(False)"),
    "body": (plain_histories, 'F.col("body") != 0', "F.lit(False)"),
    "properties": (plain_histories, 'F.col("properties") != 0', "F.lit(False)"),
    "head": (plain_histories, 'F.col("head") != 0', "F.lit(False)"),
    "retention": (judging, 'F.col("at_root") < F.col("log_min")', "F.lit(False)"),
    "units of removed records": (verdicts, ' | (F.col("role") == Role.REMOVED_PENDING)', ""),
    "settled units": (tally, "rows.bits(1 << REMOVED)", "rows.bits(0)"),
    "units with another time": (
        tally,
        '(rows.equals("other_time", True), OTHER_TIME),',
        "",
    ),
    "units of deliveries": (tally, ", (no_unit, SENT_WITHOUT_UNIT)", ""),
    "units of pending records": (tally, "(no_unit, NO_UNIT),", ""),
}
RULES: Final = 37
OF_CLOCKS: Final = (32, 33, 35)  # rules for clock steps, tested in `test_bad_clock`
RULE_IN_CI: Final = 23  # the rule for late deliveries
IN_CI: Final = ("deliveries by identity", "cancels before the end", "units of deliveries")


def mutated(module: Any, old: str, new: str) -> Any:
    """Return the audit with one text of one of its modules replaced."""
    made = {}
    for one in (chains, origins, judging, tally, plain_histories, histories, verdicts):
        assert one.__file__ is not None
        with open(one.__file__, encoding="utf-8") as file:
            text = file.read()
        if one is module:
            assert old in text, f"{module.__name__} has no {old}"
            text = text.replace(old, new)
        twin = types.ModuleType(one.__name__)
        sys.modules[f"{one.__name__}_mutated"] = twin
        twin.__name__ = f"{one.__name__}_mutated"
        cloudpickle.register_pickle_by_value(twin)  # type: ignore[no-untyped-call]  # workers have no such module
        exec(compile(text, one.__file__, "exec"), twin.__dict__)
        made[one.__name__.rpartition(".")[2]] = twin
    audit = made["verdicts"]
    audit.find_roots = made["chains"].find_roots  # type: ignore[attr-defined]
    audit.with_origins, audit.judge = made["origins"].with_origins, made["rules"].judge  # type: ignore[attr-defined]
    made["plain_histories"].record_tally = made["tally"].record_tally  # type: ignore[attr-defined]
    audit.tally_column = made["plain_histories"].tally_column  # type: ignore[attr-defined]
    audit.plain_message_histories, audit.whole_histories = (  # type: ignore[attr-defined]
        made["plain_histories"].plain_message_histories,
        made["histories"].whole_histories,
    )
    return audit


@pytest.fixture(scope="module")
def stores(spark: Any) -> tuple[Any, dict[tuple[str, int], str]]:
    made = [RandomStore(f"s{n}", 1_000 + n) for n in range(STORES)]
    rows = [
        [row for s in made for row in part(s)]
        for part in (attrgetter("messages"), attrgetter("queues"), attrgetter("cursors"))
    ]
    expected = naive_audit(rows[0], rows[1], rows[2], AuditConfig(late_ms=1_500))
    return AuditTables(rows[0], rows[1], rows[2]).frames(spark), expected


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    every = metafunc.config.getoption("--mutations")
    if "mutation" in metafunc.fixturenames:
        metafunc.parametrize("mutation", list(MUTATIONS) if every else IN_CI)
    if "rule" in metafunc.fixturenames:
        rules = [rule for rule in range(RULES) if rule not in OF_CLOCKS]
        metafunc.parametrize("rule", rules if every else [RULE_IN_CI])


def test_a_dropped_condition_is_detected(
    mutation: str, stores: tuple[Any, dict[tuple[str, int], str]]
) -> None:
    audit = mutated(*MUTATIONS[mutation])
    found, _ = audit.audit(*stores[0], audit.AuditConfig(late_ms=1_500), ids=False)
    rows = [(r["store"], r["root"], r["verdict"]) for r in found.collect()]
    mine = {(store, root): verdict for store, root, verdict in rows}
    assert len(mine) < len(rows) or mine != stores[1]


def test_a_dropped_rule_is_detected(
    rule: int, stores: tuple[Any, dict[tuple[str, int], str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = judging._rules
    every = rules(AuditConfig())
    assert len(every) == RULES
    assert [why for _, _, why in every if why in judging.EXCUSED] == [
        every[at][2] for at in OF_CLOCKS
    ]
    assert every[RULE_IN_CI][0] == "late"
    monkeypatch.setattr(
        judging, "_rules", lambda config: [r for at, r in enumerate(rules(config)) if at != rule]
    )
    found, _ = verdicts.audit(*stores[0], AuditConfig(late_ms=1_500), ids=False)  # type: ignore[misc]
    rows = found.collect()
    # Without the rules for early and overdue messages, their verdicts come from rules for clock
    # steps, which these stores do not have; `test_verdicts` compares both.
    excused = any(r["why"] in judging.EXCUSED for r in rows)
    assert excused or {(r["store"], r["root"]): r["verdict"] for r in rows} != stores[1]
