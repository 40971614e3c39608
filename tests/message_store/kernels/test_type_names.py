"""Texts of argument types, which correspond to Numba's types."""

from __future__ import annotations

import re
import sys
from typing import Any

import numpy as np
import pytest
from numba import typeof

from message_store import layout
from message_store.kernels.topics import TopicNames
from message_store.kernels.type_names import types_of
from tests.support.type_texts import layouts_of, text_of

LAYOUTS = layouts_of({"message_store.layout": sys.modules["message_store.layout"]})
CONSTANT = np.zeros(3, np.uint8)
CONSTANT.flags.writeable = False
ROWS = np.zeros(2, layout.PUT)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1, "int64"),
        (True, "bool"),
        (1.5, "float64"),
        (None, "none"),
        (np.zeros(2, np.int32), "int32[::1]"),
        (np.zeros((2, 2), np.int64), "int64[:, ::1]"),
        (np.zeros(4, np.int64)[::2], "int64[:]"),
        (CONSTANT, "const(uint8[::1])"),
        (ROWS, "message_store.layout.PUT[::1]"),
        (ROWS[0], "message_store.layout.PUT"),
        ((1, 2), "(int64, int64)"),
        ((1,), "(int64,)"),
        (
            TopicNames(ROWS, CONSTANT, ROWS),
            "message_store.kernels.topics.TopicNames("
            "message_store.layout.PUT[::1], const(uint8[::1]), message_store.layout.PUT[::1])",
        ),
    ],
)
def test_texts_and_types_correspond(value: Any, text: str) -> None:
    signature = (typeof(value), typeof(1))  # type: ignore[no-untyped-call]
    assert text_of(signature, LAYOUTS) == f"{text}, int64"
    assert types_of(f"{text}, int64") == signature


@pytest.mark.parametrize("text", ["int63", "const(int64)", "int64 + int64", "'text'"])
def test_illegal_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"{text} is not a type")):
        types_of(text)


def test_a_type_without_a_text_is_refused() -> None:
    signature = (typeof("text"),)  # type: ignore[no-untyped-call]
    with pytest.raises(ValueError, match="unicode_type is not a type"):
        text_of(signature, LAYOUTS)
