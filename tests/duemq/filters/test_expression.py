"""Compiled expressions that are kept."""

from __future__ import annotations

import pytest

from duemq.filters import Compiler, FilterError


def test_a_repeated_expression_is_compiled_once() -> None:
    compiler = Compiler()
    assert compiler.compile("a = 1") is compiler.compile("a = 1")


def test_an_error_is_raised_again() -> None:
    compiler = Compiler()
    for _ in range(2):
        with pytest.raises(FilterError, match="Encountered <EOF>"):
            compiler.compile("a =")


def test_the_least_recently_used_is_dropped_first() -> None:
    compiler = Compiler(cache_max=2)
    first, second = compiler.compile("a = 1"), compiler.compile("a = 2")
    assert compiler.compile("a = 1") is first
    compiler.compile("a = 3")
    assert compiler.compile("a = 1") is first
    assert compiler.compile("a = 2") is not second


def test_kept_text_is_bounded() -> None:
    compiler = Compiler(chars_max=10)
    first = compiler.compile("a = 1")
    compiler.compile("a = 1111111")
    assert compiler.compile("a = 1") is not first
