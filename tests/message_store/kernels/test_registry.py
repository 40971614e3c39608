"""The list of kernels: it is complete, and each group contains everything that its work calls."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from types import CodeType, ModuleType
from typing import Any

import pytest

from message_store.kernels import kernel_sources, module_of
from message_store.kernels.registry import every_kernel, kernels_of
from message_store.kernels.type_names import named, types_of
from tests.support.kernel_signatures import GROUPS, recorded

FOR_OTHER_PROCESSORS = "message_store.kernels.crc.crc32_by_tables"
RECORD_AGAIN = "run `python -m tests.support.kernel_signatures`"


def names_in(code: CodeType) -> Iterator[str]:
    """Yield the names of globals and attributes that a function uses."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from names_in(constant)


def called_by(kernel: Any) -> Iterator[Any]:
    """Yield the kernels that a kernel may call."""
    names = set(names_in(kernel.py_func.__code__))
    for name in names:
        value = kernel.py_func.__globals__.get(name)
        inside = [getattr(value, each, None) for each in names]
        found = inside if isinstance(value, ModuleType) else [value]
        yield from (each for each in found if hasattr(each, "py_func"))


def test_every_kernel_is_listed_or_called_by_a_listed_one() -> None:
    kernels = {}
    for path in kernel_sources():
        module = importlib.import_module(module_of(path) or "")
        for attribute, value in vars(module).items():
            if hasattr(value, "py_func") and value.py_func.__module__ == module.__name__:
                kernels[f"{module.__name__}.{attribute}"] = value
    reached, ahead = set[int](), [named(listed.name) for listed in every_kernel()]
    while ahead:
        kernel = ahead.pop()
        if id(kernel) not in reached:
            reached.add(id(kernel))
            ahead += called_by(kernel)
    missing = [name for name, kernel in kernels.items() if id(kernel) not in reached]
    assert set(missing) <= {FOR_OTHER_PROCESSORS}, f"not listed: {missing}; {RECORD_AGAIN}"


def test_every_line_has_a_kernel_its_types_and_groups() -> None:
    for listed in every_kernel():
        assert hasattr(named(listed.name), "py_func"), listed
        assert types_of(listed.types), listed
        assert listed.groups <= set(GROUPS), listed
    assert {group for listed in every_kernel() for group in listed.groups} == set(GROUPS)


@pytest.fixture(scope="module")
def called(request: pytest.FixtureRequest) -> dict[str, list[str]]:
    """Return the kernels that the work of each group of this day calls."""
    items = [item for item in request.session.items if item.path == request.path]
    return recorded([item.callspec.params["group"] for item in items if hasattr(item, "callspec")])


@pytest.mark.sampled
@pytest.mark.parametrize("group", GROUPS)
def test_the_work_of_a_group_calls_only_listed_kernels(
    group: str, called: dict[str, list[str]]
) -> None:
    listed = {f"{each.name}({each.types})" for each in kernels_of([group])}
    assert set(called[group]) - listed == set(), RECORD_AGAIN
