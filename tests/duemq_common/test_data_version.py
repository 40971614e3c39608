"""Versions of tables and lenient members of JSON objects."""

from __future__ import annotations

from typing import Any

import pytest

from duemq_common.data_version import DataVersion, boolean, integer


@pytest.mark.parametrize(
    ("data", "version"),
    [
        (None, DataVersion()),
        ({}, DataVersion()),
        ({"counter": 3, "timestamp": 17}, DataVersion(3, 17, 0)),  # 4.9.x
        ({"counter": 3, "stateVersion": 2, "timestamp": 17}, DataVersion(3, 17, 2)),
        ({"counter": "3"}, DataVersion(3)),
    ],
)
def test_versions_of_all_brokers_are_read(data: Any, version: DataVersion) -> None:
    assert DataVersion.from_json(data) == version


def test_a_change_makes_another_version() -> None:
    version = DataVersion(3, 17, 2)
    assert version.next(18) == DataVersion(4, 18, 2)
    assert DataVersion.from_json(version.to_json()) == version


@pytest.mark.parametrize("data", [[], "3", {"counter": "x"}, {"counter": 1.5}, {"counter": True}])
def test_no_version(data: Any) -> None:
    with pytest.raises(ValueError):
        DataVersion.from_json(data)


@pytest.mark.parametrize(
    ("value", "expected"), [(5, 5), ("5", 5), ("-5", -5), (None, 7), (-(1 << 63), -(1 << 63))]
)
def test_numbers(value: Any, expected: int) -> None:
    assert integer({"n": value}, "n", 7) == expected


@pytest.mark.parametrize("value", [1 << 63, "9" * 20, "9" * 5000, [], {}, 1.0, False])
def test_no_numbers(value: Any) -> None:
    with pytest.raises(ValueError):
        integer({"n": value}, "n", 7)


@pytest.mark.parametrize(
    ("value", "expected"), [(True, True), ("true", True), ("False", False), (None, True)]
)
def test_booleans(value: Any, expected: bool) -> None:
    assert boolean({"b": value}, "b", True) is expected


@pytest.mark.parametrize("value", [1, "yes", []])
def test_no_booleans(value: Any) -> None:
    with pytest.raises(ValueError):
        boolean({"b": value}, "b", True)


@pytest.mark.finding("3D4")
@pytest.mark.parametrize("counter", [0, 5, -3, (1 << 63) - 2, (1 << 63) - 1, -(1 << 63)])
def test_the_next_version_of_any_counter_can_be_read(counter: int) -> None:
    version = DataVersion(counter).next(1)
    assert version.counter != counter
    assert DataVersion.from_json(version.to_json()) == version
