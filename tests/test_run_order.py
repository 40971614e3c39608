"""Order of the tests in a run with several workers."""

from __future__ import annotations

from tests.support.run_order import BROWSER, LEDGER, LONG, SEPARATE, SPARK, ordered, unit_of
from tests.test_house_rules import TOP


def test_each_named_file_exists() -> None:
    named = (*LONG, *SEPARATE, *SPARK, *LEDGER, *BROWSER)
    assert [name for name in named if not (TOP / name).exists()] == []


def test_long_files_are_first_and_units_stay_whole() -> None:
    separate = min(SEPARATE)
    given = [
        "tests/x/a.py::one",
        "tests/x/a.py::two",
        "tests/x/b.py::one",
        f"{separate}::one",
        f"{separate}::two",
        "tests/interop/c.py::one",
        f"{LONG[1]}::one",
        f"{LONG[0]}::one",
    ]
    assert ordered(given) == [
        f"{LONG[0]}::one",
        f"{LONG[1]}::one",
        f"{separate}::one",
        "tests/x/a.py::one",
        "tests/x/a.py::two",
        f"{separate}::two",
        "tests/x/b.py::one",
        "tests/interop/c.py::one",
    ]


def test_a_separate_test_is_a_unit() -> None:
    separate = f"{min(SEPARATE)}::test[one::two]"
    assert unit_of(separate) == separate
    assert unit_of("tests/x/a.py::test[x]") == "tests/x/a.py"
    assert unit_of("tests/a.py::test") == "tests/"
    for shared in (SPARK, LEDGER, BROWSER):
        assert {unit_of(f"{name}::test") for name in shared} == {shared[0]}
