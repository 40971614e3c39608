"""Names of client versions: clients send the index of their version in Apache's list.

From 3.0.1, each version has two indexes, for snapshot and release. MQVersion.Version
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

_FIRST: Final = (
    "snapshot",
    "alpha1",
    "beta1",
    "beta2",
    "beta3",
    "beta4",
    "beta5",
    "beta6_snapshot",
    "beta6",
    "beta7_snapshot",
    "beta7",
    "beta8_snapshot",
    "beta8",
    "beta9_snapshot",
    "beta9",
    "final",
)
HIGHER: Final = "higher_version"


def _patches(major: int, minor: int) -> range:
    """Return the patch numbers of one minor version."""
    if (major, minor) == (3, 0):
        return range(1, 16)
    return range(1 if major == 3 and minor >= 3 else 0, 10)


def _all_names() -> Iterator[str]:
    yield from (f"v3_0_0_{name}" for name in _FIRST)
    for major in (3, 4, 5):
        for minor in range(10):
            for patch in _patches(major, minor):
                name = f"v{major}_{minor}_{patch}"
                yield f"{name}_snapshot"
                yield name


NAMES: Final = (*_all_names(), HIGHER)


def version_name(number: int) -> str:
    """Return the name of a version number in lower case; `higher_version` for unknown numbers."""
    return NAMES[number] if 0 <= number < len(NAMES) else HIGHER
