"""Imports between packages follow the order in the design (section 3)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.packages import IN_A_FOLDER, TOP, folder_of
from tests.test_house_rules import facts, name_of

ARROWS: dict[str, set[str]] = {
    "duemq_common": set(),
    "message_store": {"duemq_common"},
    "delayed_delivery": {"duemq_common", "message_store"},
    "schedule_service": {"duemq_common", "message_store", "delayed_delivery"},
    "timer_store": {"duemq_common", "message_store", "delayed_delivery"},
    "recurring_schedules": {"duemq_common", "message_store", "delayed_delivery"},
    "duemq_migration": {
        "duemq_common",
        "message_store",
        "delayed_delivery",
        "schedule_service",
        "timer_store",
    },
    "spark_reconciliation": {"duemq_common", "message_store", "delayed_delivery"},
    "duemq": {
        "duemq_common",
        "message_store",
        "delayed_delivery",
        "schedule_service",
        "timer_store",
        "recurring_schedules",
        "duemq_migration",
        "spark_reconciliation",
    },
}
ORDER = (
    "cli > testing > broker > console > http > v5 > admin > replication > namesrv > pop > pull > "
    "metrics > send > messages > transactions > registry > configuration > client > auth > "
    "filters > net"
)
LAYERS = ORDER.split(" > ")
"""Sub-packages of duemq/: each may import only those after it, and none the root."""
LAYOUTS_OF_OTHERS = {"spark_reconciliation": {"timer_store.layout"}}
"""Byte layouts that a package may read without importing their owner (decision 16)."""
FOUND_BY_ENTRY_POINT = {"schedule_service", "timer_store", "recurring_schedules"}
"""Plugins, loaded through their entry points; only the command line may import them."""


def imported_packages(path: Path) -> Iterator[tuple[str, int]]:
    """Yield (dotted module, line) of every import, also those inside functions."""
    name = name_of(path)
    assert facts()["relative imports"][name] == []
    yield from facts()["imported modules"][name]


def sources(package: str) -> list[Path]:
    return sorted(folder_of(package).rglob("*.py"))


@pytest.mark.parametrize("package", ARROWS)
def test_imports_point_down(package: str) -> None:
    wrong = []
    for path in sources(package):
        for module, line in imported_packages(path):
            other = module.partition(".")[0]
            if module in LAYOUTS_OF_OTHERS.get(package, ()):
                continue
            if other in ARROWS and other != package and other not in ARROWS[package]:
                wrong.append(f"{path.relative_to(TOP)}:{line} imports {module}")
    assert not wrong, "\n".join(wrong)


def test_only_its_package_reaches_the_log_of_a_store() -> None:
    wrong = [
        f"{name_of(path)}:{line}"
        for package in sorted(ARROWS.keys() - {"message_store"})
        for path in sources(package)
        for line in facts()["log of a store"][name_of(path)]
    ]
    assert not wrong, "\n".join(wrong)


def test_imports_between_the_layers_of_duemq_point_down() -> None:
    wrong = []
    for path in sources("duemq"):
        inside = path.relative_to(TOP / "duemq").parts
        if len(inside) == 1:  # the front door
            continue
        below = LAYERS[LAYERS.index(inside[0]) :]
        for module, line in imported_packages(path):
            names = module.split(".")
            if names[0] == "duemq" and (len(names) == 1 or names[1] not in below):
                wrong.append(f"{path.relative_to(TOP)}:{line} imports {module}")
    assert not wrong, "\n".join(wrong)


def test_every_module_of_duemq_is_in_a_layer() -> None:
    names = {path.name for path in (TOP / "duemq").iterdir() if path.name != "__pycache__"}
    assert names - {"__init__.py", "__main__.py", "py.typed"} <= set(LAYERS)


def test_the_transport_knows_no_broker_policy() -> None:
    wrong = [
        f"{path.relative_to(TOP)}:{line} imports {module}"
        for path in sources("duemq")
        if path.is_relative_to(TOP / "duemq" / "net")
        for module, line in imported_packages(path)
        if module.startswith("duemq.") and not module.startswith("duemq.net")
    ]
    assert not wrong, "\n".join(wrong)


def test_the_broker_does_not_import_its_plugins() -> None:
    """Commands, and the client's requests to plugins, have the types of these requests."""
    clients = TOP / "duemq" / "cli", TOP / "duemq" / "client" / "admin"
    wrong = [
        f"{path.relative_to(TOP)}:{line} imports {module}"
        for path in sources("duemq")
        if not any(map(path.is_relative_to, clients)) and path != TOP / "duemq" / "__init__.py"
        for module, line in imported_packages(path)
        if module.partition(".")[0] in FOUND_BY_ENTRY_POINT
    ]
    assert not wrong, "\n".join(wrong)


def test_every_package_has_a_place_in_the_order() -> None:
    packages = {path.parent.name for path in TOP.glob("*/__init__.py")} - {"tests", "benchmarks"}
    inside = [TOP.glob(f"{folder}/*/__init__.py") for folder in IN_A_FOLDER.values()]
    assert packages | {path.parent.name for paths in inside for path in paths} == ARROWS.keys()
