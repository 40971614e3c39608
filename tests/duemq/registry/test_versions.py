"""Names of client versions, at the places where Apache's list is irregular."""

import pytest

from duemq.registry.versions import NAMES, version_name


@pytest.mark.parametrize(
    ("number", "name"),
    [
        (0, "v3_0_0_snapshot"),
        (15, "v3_0_0_final"),
        (16, "v3_0_1_snapshot"),
        (17, "v3_0_1"),
        (121, "v3_4_9"),
        (399, "v4_9_3"),
        (407, "v4_9_7"),
        (479, "v5_3_3"),
        (611, "v5_9_9"),
        (612, "higher_version"),
        (9_999, "higher_version"),
        (-1, "higher_version"),
    ],
)
def test_version_name(number: int, name: str) -> None:
    assert version_name(number) == name


def test_the_list_is_as_long_as_apaches() -> None:
    assert len(NAMES) == 613
