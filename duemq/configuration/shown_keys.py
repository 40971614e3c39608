"""Keys of a configuration with value, default and source; secrets are masked."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass

from duemq.configuration.apache_keys import check_refusals
from duemq.configuration.settings import SECTIONS, Settings, current_values
from duemq_common.config import Option, Properties, from_properties, options, value_text
from duemq_common.masking import masked


@dataclass(frozen=True, slots=True)
class ShownKey:
    """Key of a configuration.

    Attributes:
        source: File, environment or command that sets the key; empty: nothing does.
        live: Whether a running broker applies a new value.
    """

    key: str
    value: str
    default: str
    source: str
    unit: str
    live: bool
    doc: str
    section: str

    @property
    def changed(self) -> bool:
        return bool(self.source)


def shown_keys(properties: Properties, sections: Iterable[type]) -> list[ShownKey]:
    """Return every key of the sections.

    Raises:
        ConfigError: A value is invalid.
    """
    check_refusals(properties)
    keys = []
    for section in sections:
        config: object = from_properties(section, properties)
        for item in options(section):
            keys.append(_shown(item, value_text(getattr(config, item.name)), properties))
    return keys


def configuration_view(settings: Settings, plugin_sections: Iterable[type]) -> dict[str, object]:
    """Return every key of a running broker with its current value."""
    sections = list(plugin_sections)
    values = current_values(settings, sections)
    keys = [
        asdict(_shown(item, values[item.key], settings.properties))
        for section in (*SECTIONS, *sections)
        for item in options(section)
    ]
    return {"keys": keys}


def _shown(item: Option, value: str, properties: Properties) -> ShownKey:
    source = (properties.source(item.key) or "set") if item.key in properties else ""
    return ShownKey(
        key=item.key,
        value=masked(item.key, value),
        default=value_text(item.default),
        source=source,
        unit=item.unit,
        live=item.live,
        doc=item.doc,
        section=item.section,
    )
