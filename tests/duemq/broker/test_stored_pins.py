"""Pins of plugins that are installed and not loaded."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from duemq.broker.stored_pins import stored_pins
from message_store.retention.pins import UNKNOWN
from tests.duemq.distributions import install
from tests.support.stores import open_store

OURS = {"migration", "reconciliation", "recurring_schedules", "schedule_service", "timer_store"}


@pytest.mark.finding("A1")
@pytest.mark.parametrize(
    ("source", "response"),
    [
        ("def stored_pin(store): return store.min_offset + 7", 7),
        ("def stored_pin(store): return None", None),
        ("def stored_pin(store): raise OSError('damaged')", UNKNOWN),
        ("x = 1", UNKNOWN),
        (None, None),
    ],
    ids=["an offset", "nothing pending", "it fails", "no function", "no module"],
)
def test_the_package_of_a_plugin_answers_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str | None, response: object
) -> None:
    site, package = tmp_path / "site", tmp_path / "site" / "absent_plugin"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    install(site, "absent", "x = 1", plugin="absent")
    [entry] = site.glob("*.dist-info/entry_points.txt")
    entry.write_text("[duemq.broker_plugins]\nabsent = absent_plugin.plugin:create_plugin\n")
    if source is not None:
        (package / "stored_pin.py").write_text(source)
    monkeypatch.syspath_prepend(str(site))
    try:
        with open_store(tmp_path / "store") as store:
            pins = stored_pins(store, OURS)
            assert pins["absent"]() is response
            assert "absent_plugin.plugin" not in sys.modules
            assert stored_pins(store, OURS | {"absent"}) == {}
    finally:
        for name in [name for name in sys.modules if name.startswith("absent_plugin")]:
            del sys.modules[name]
