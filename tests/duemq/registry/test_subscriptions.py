import numpy as np
import pytest

from duemq.registry.subscriptions import ExpressionError, parse_expression
from duemq_common.text import java_hash

CODES = np.array([0, java_hash("a"), java_hash("b"), java_hash("延迟"), java_hash("c")], np.int64)


@pytest.mark.parametrize(
    ("expression", "passes"),
    [
        (None, [True] * 5),
        ("", [True] * 5),
        ("*", [True] * 5),
        ("a", [False, True, False, False, False]),
        (" a || b ", [False, True, True, False, False]),
        ("a||||延迟", [False, True, False, True, False]),
        ("no", [False] * 5),
    ],
)
def test_a_tag_expression_passes_the_hashes_of_its_tags(
    expression: str | None, passes: list[bool]
) -> None:
    assert parse_expression("T", expression).mask(CODES).tolist() == passes


@pytest.mark.parametrize("expression", ["||", "||||", "|"])
def test_an_expression_without_a_tag_is_refused(expression: str) -> None:
    with pytest.raises(ExpressionError, match="no tag"):
        parse_expression("T", expression)


@pytest.mark.finding("A10")
@pytest.mark.parametrize("kind", ["TAG", "SQL92"])
def test_a_long_expression_is_refused(kind: str) -> None:
    with pytest.raises(ExpressionError, match="the limit is 131072"):
        parse_expression("T", "a" * (1 << 18), kind)


def test_the_low_32_bits_decide() -> None:
    code = np.array([java_hash("a") + (1 << 40)], np.int64)
    assert parse_expression("T", "a").mask(code).tolist() == [True]


def test_another_kind_is_kept_as_it_is() -> None:
    found = parse_expression("T", "x > 1", "SQL92", 7)
    assert (found.is_tag, found.expression, found.version) == (False, "x > 1", 7)


def test_the_json_form_has_apaches_names() -> None:
    assert parse_expression("T", "a||b", version=5).to_json() == {
        "classFilterMode": False,
        "codeSet": [97, 98],
        "expressionType": "TAG",
        "subString": "a||b",
        "subVersion": 5,
        "tagsSet": ["a", "b"],
        "topic": "T",
    }
