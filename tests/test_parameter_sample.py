"""Sample of parameter sets: each function and each value is in it, and days differ."""

from __future__ import annotations

import pytest

from tests.support import parameter_sample
from tests.support.parameter_sample import DAY, left_out

FILE = "tests/interop/test_grpc_proxy.py"
OTHER = "tests/duemq/send/test_send.py"
SETS = [f"{v}-{e}" for v in ("4.9.7", "5.3.3", "5.5.1") for e in ("kill", "order")]
NODEIDS = [f"{FILE}::test_{name}[{values}]" for name in "abcd" for values in SETS]
SINGLE = [f"{FILE}::test_single", *(f"{OTHER}::test_x[{n}]" for n in range(3))]


def chosen(day: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv(DAY, day)
    result = left_out([*NODEIDS, *SINGLE])
    return [nodeid for nodeid in (*NODEIDS, *SINGLE) if nodeid not in result]


def test_each_function_and_each_value_is_in_the_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    for day in range(1, 29):
        names = chosen(f"2026-11-{day:02}", monkeypatch)
        assert [name for name in names if name in SINGLE] == SINGLE
        sampled = [name for name in names if name in NODEIDS]
        assert [name[len(FILE) + 7] for name in sampled] == list("abcd")
        text = " ".join(sampled)
        assert all(value in text for value in ("4.9.7", "5.3.3", "5.5.1", "kill", "order"))


def test_half_of_the_functions_of_a_slow_file_are_in_the_sample() -> None:
    [file] = [name for name in parameter_sample.HALVED if "our_replica" in name]
    assert len(left_out([f"{file}::test_{number}" for number in range(5)])) == 2 + 4  # of SPARK


def test_all_sets_are_chosen_within_a_month(monkeypatch: pytest.MonkeyPatch) -> None:
    days = [set(chosen(f"2026-11-{day:02}", monkeypatch)) for day in range(1, 31)]
    assert set.union(*days) == {*NODEIDS, *SINGLE}


def test_a_sampled_file_exists(pytestconfig: pytest.Config) -> None:
    root = pytestconfig.rootpath
    assert [file for file in parameter_sample.SAMPLED if not (root / file).exists()] == []
    for nodeid in parameter_sample.SPARK:
        file, _, name = nodeid.partition("::")
        assert f"def {name}(" in (root / file).read_text()
