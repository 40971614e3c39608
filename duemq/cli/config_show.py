"""`duemq config show`: every key with value, default and source."""

from __future__ import annotations

from duemq.configuration.config import BrokerConfig
from duemq.configuration.settings import SECTIONS, key_notices
from duemq.configuration.shown_keys import ShownKey, shown_keys
from duemq.namesrv.config import SECTIONS as NAMESRV_SECTIONS
from duemq_common.config import Properties, from_properties


def broker_sections(properties: Properties) -> list[type]:
    """Return the broker's sections, including those of installed plugins."""
    return [*SECTIONS, *plugin_sections(properties)]


def plugin_sections(properties: Properties) -> list[type]:
    """Return the sections of installed plugins."""
    from duemq.broker.plugins import installed_sections

    disabled = from_properties(BrokerConfig, properties).disabled_plugins
    return installed_sections(properties, disabled)


def show(
    properties: Properties, *, namesrv: bool = False, changed: bool = False, as_json: bool = False
) -> None:
    """Print the configuration that results from `properties`."""
    sections = NAMESRV_SECTIONS if namesrv else broker_sections(properties)
    shown = [key for key in shown_keys(properties, sections) if key.changed or not changed]
    notices = key_notices(properties, sections)
    if as_json:
        _print_json(shown, notices)
    else:
        _print_table(shown, notices)


def _print_json(shown: list[ShownKey], notices: list[str]) -> None:
    from dataclasses import asdict

    from duemq.cli.output import print_json

    print_json({"keys": [asdict(key) for key in shown], "notices": notices})


def _print_table(shown: list[ShownKey], notices: list[str]) -> None:
    from duemq.cli.output import console, table

    rows = [(key.key, key.value, key.default, key.source or "default", key.unit) for key in shown]
    out = console()
    out.print(table("Configuration", ("key", "value", "default", "source", "unit"), rows))
    for notice in notices:
        out.print(f"[yellow]note[/] {notice}", markup=True)
