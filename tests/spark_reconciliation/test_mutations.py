"""Every condition of the audit's joins is needed: without it verdicts of random stores differ."""

from __future__ import annotations

import types
from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

import pytest

from spark_reconciliation.audit import (
    chains,
    histories,
    keyed_events,
    origins,
    plain_histories,
    plain_sums,
    tally,
    verdicts,
)
from spark_reconciliation.audit import rules as judging
from spark_reconciliation.audit.audit_config import AuditConfig
from spark_reconciliation.engine import use_engine_of
from spark_reconciliation.local.frame import LocalSession
from tests.support.audit_rows import AuditTables
from tests.support.naive_audit import naive_audit
from tests.support.random_histories import RandomStore

STORES = 600
MODULES: Final = (
    tally,
    plain_histories,
    plain_sums,
    keyed_events,
    chains,
    origins,
    judging,
    histories,
    verdicts,
)
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
RULES: Final = 38
OF_CLOCKS: Final = (33, 34, 36)  # rules for clock steps, tested in `test_bad_clock`
RULE_IN_CI: Final = 23  # the rule for late deliveries
IN_CI: Final = ("deliveries by identity", "cancels before the end", "units of deliveries")


def mutated(module: Any, old: str, new: str) -> Any:
    """Return `verdicts` of copies of the audit's modules, one of them with a text replaced."""
    copies: dict[Any, types.ModuleType] = {}
    for one in MODULES:
        assert one.__file__ is not None
        text = Path(one.__file__).read_text(encoding="utf-8")
        if one is module:
            assert old in text, f"{module.__name__} has no {old}"
            text = text.replace(old, new)
        copies[one] = types.ModuleType(one.__name__)
        exec(compile(text, one.__file__, "exec"), copies[one].__dict__)
    copied = {
        id(value): vars(copies[one])[name]
        for one in MODULES
        for name, value in vars(one).items()
        if getattr(value, "__module__", "") == one.__name__
    }
    for copy in copies.values():  # their imports are those of the product
        for name, value in vars(copy).items():
            if id(value) in copied:
                setattr(copy, name, copied[id(value)])
    return copies[verdicts]


@pytest.fixture(scope="module")
def stores() -> Iterator[tuple[Any, dict[tuple[str, int], str]]]:
    made = [RandomStore(f"s{n}", 1_000 + n) for n in range(STORES)]
    rows = [
        [row for s in made for row in part(s)]
        for part in (attrgetter("messages"), attrgetter("queues"), attrgetter("cursors"))
    ]
    expected = naive_audit(rows[0], rows[1], rows[2], AuditConfig(late_ms=1_500))
    session = LocalSession()
    with use_engine_of(session):
        yield AuditTables(rows[0], rows[1], rows[2]).frames(session), expected
    session.stop()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    every = metafunc.config.getoption("--mutations")
    if "mutation" in metafunc.fixturenames:
        metafunc.parametrize("mutation", list(MUTATIONS) if every else IN_CI)
    if "rule" in metafunc.fixturenames:
        rules = [rule for rule in range(RULES) if rule not in OF_CLOCKS]
        metafunc.parametrize("rule", rules if every else [RULE_IN_CI])


@pytest.mark.sampled
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
