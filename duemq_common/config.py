"""Configuration sections: frozen dataclasses parsed from Java properties text, checked once.

    text --parse_properties--> Properties --from_properties--> StoreConfig, BrokerConfig, ...

A section is a frozen dataclass whose fields are declared by `option`: Apache's key, its meaning,
unit and limits, whether a running broker applies a new value (`live`), and whether a request may
change it (`wire`). A component gets its own section only; a reload passes a new one.
"""

from __future__ import annotations

import dataclasses
import os
import typing
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field
from pathlib import Path
from typing import Any, TypeVar

from msgspec import Struct

from duemq_common.config_text import Properties as Properties
from duemq_common.config_text import parse_properties as parse_properties
from duemq_common.config_text import read_properties as read_properties
from duemq_common.errors import ConfigError

INT_MAX = (1 << 31) - 1
LONG_MAX = (1 << 63) - 1

T = TypeVar("T")
_OPTIONS: dict[type, tuple[Option, ...]] = {}  # of the classes that were read


class Option(Struct, frozen=True):
    """Declaration of one configuration key."""

    name: str  # name of the dataclass field
    key: str  # Apache's name
    doc: str
    unit: str
    live: bool
    wire: bool  # a request of the network may change it
    default: object
    kind: type  # int, float, bool or str
    minimum: float | None
    maximum: float | None
    choices: tuple[str, ...]
    own: bool  # True: a key of DueMQ, unknown to Apache
    section: str  # class name


COUNTED = (
    "checks",
    "connections",
    "entries",
    "files",
    "groups",
    "slots",
    "subscriptions",
    "topics",
)
UNITS = {"percent": "%"} | {word: word for word in ("ms", "s", "hours", "bytes", "port", *COUNTED)}


def option(
    default: object,
    key: str,
    doc: str,
    *,
    unit: str | None = None,
    live: bool = False,
    wire: bool = False,
    minimum: float | None = None,
    maximum: float | None = None,
    choices: tuple[str, ...] = (),
    own: bool = False,
) -> Any:
    """Declare one configuration field.

    Args:
        default: The value when the key is absent.
        key: RocketMQ's name of the key (or ours, with `own`).
        doc: One sentence for the reference.
        unit: `ms`, `bytes`, `%`, ...; by default the suffix of the field's name.
        live: Whether a running broker applies a new value.
        wire: A request (25, 318) may change it as well. Never for a key that names a path, an
            address, a command or a class: the network is not trusted with those.
        minimum, maximum: Inclusive limits of a number; by default, those of its Java type.
        choices: The only words allowed.
        own: A key of DueMQ, unknown to RocketMQ.
    """
    reload = {"live": live or wire, "wire": wire}
    limits = {"minimum": minimum, "maximum": maximum, "choices": choices}
    metadata = {"key": key, "doc": doc, "unit": unit, "own": own, **reload, **limits}
    return field(default=default, metadata=metadata)


def unit_of(name: str) -> str:
    """Return the unit from the suffix of a field's name, as in `idle_ms` or `topics_max`."""
    return UNITS.get(name.removesuffix("_max").rpartition("_")[2], "")


def options(section: type) -> tuple[Option, ...]:
    """Return the keys of a configuration class, in order of declaration."""
    if section not in _OPTIONS:
        _OPTIONS[section] = _declared(section)
    return _OPTIONS[section]


def _declared(section: type) -> tuple[Option, ...]:
    hints = typing.get_type_hints(section)
    keys = []
    for item in dataclasses.fields(section):
        if "key" not in item.metadata:
            continue
        metadata = dict(item.metadata)
        if metadata["unit"] is None:
            metadata["unit"] = unit_of(item.name)
        kind, name = hints[item.name], section.__name__
        keys.append(Option(item.name, default=item.default, kind=kind, section=name, **metadata))
    return tuple(keys)


def from_properties(section: type[T], properties: Mapping[str, str]) -> T:
    """Build a configuration section from properties; absent keys keep their default.

    Raises:
        ConfigError: A value is of the wrong kind or out of range.
    """
    values = {}
    with errors_name_sources(properties):
        for item in options(section):
            if item.key in properties:
                values[item.name] = parse_value(item, properties[item.key])
        return section(**values)


@contextmanager
def errors_name_sources(properties: Mapping[str, str]) -> Iterator[None]:
    """Add the source of the key, such as a line or a variable, to errors that do not have it.

    Raises:
        ConfigError: A value is invalid, as the block found.
    """
    try:
        yield
    except ConfigError as error:
        source = properties.source(error.key) if isinstance(properties, Properties) else ""
        if error.source or not source:
            raise
        raise ConfigError(error.key, error.value, error.reason, source=source) from error


def expanded(key: str, text: str) -> Path:
    """Return the path of a configuration key.

    Raises:
        ConfigError: The path begins with `~`, and there is no such home directory. A service
            account or a container may have none.
    """
    path = os.path.expanduser(text)
    if path.startswith("~"):
        reason = "there is no such home directory: set a path that does not begin with ~"
        raise ConfigError(key, text, reason)
    return Path(path)


def to_properties(config: object) -> dict[str, str]:
    """Return a section as Apache prints it: key to text, every key, in declaration order."""
    return {item.key: value_text(getattr(config, item.name)) for item in options(type(config))}


def with_live(old: T, new: T) -> tuple[T, list[str]]:
    """Return `old` with the live values of `new`, and the keys whose change needs a restart."""
    live, restart = {}, []
    for item in options(type(old)):
        value = getattr(new, item.name)
        if value == getattr(old, item.name):
            continue
        if item.live:
            live[item.name] = value
        else:
            restart.append(item.key)
    return dataclasses.replace(old, **live), restart  # type: ignore[type-var]


def value_text(value: object) -> str:
    """Return a value as text of a properties file."""
    return ("true" if value else "false") if isinstance(value, bool) else str(value)


def parse_value(item: Option, text: str, source: str = "") -> Any:
    """Return the value of `text` for the key `item`.

    Raises:
        ConfigError: The value is of the wrong type or out of range.
    """
    text = text.strip()
    if item.kind is bool:
        if text.lower() not in ("true", "false"):
            raise ConfigError(item.key, text, "must be true or false", source=source)
        return text.lower() == "true"
    if item.kind is str:
        return _parse_choice(item, text, source)
    return _parse_number(item, text, source)


def _parse_choice(item: Option, text: str, source: str) -> str:
    if item.choices and text not in item.choices:
        reason = f"must be one of {', '.join(item.choices)}"
        raise ConfigError(item.key, text, reason, source=source)
    return text


def _parse_number(item: Option, text: str, source: str) -> int | float:
    try:
        if len(text) > 40:
            raise ValueError
        value = item.kind(text.replace("_", "x"))
    except ValueError:
        form = "a whole number" if item.kind is int else "a number"
        raise ConfigError(item.key, text, f"must be {form}{_of(item)}", source=source) from None
    low = item.minimum if item.minimum is not None else -INT_MAX - 1
    high = item.maximum if item.maximum is not None else INT_MAX
    if not low <= value <= high:
        reason = f"must be from {low} to {high}{_of(item)}"
        raise ConfigError(item.key, text, reason, source=source)
    number: int | float = value
    return number


def _of(item: Option) -> str:
    return f" ({item.unit})" if item.unit else ""
