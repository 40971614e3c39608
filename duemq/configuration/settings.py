"""All configuration of a broker process, from one set of properties.

file < environment < command line      later sources win; the CLI collects them
            |
        Properties --> Settings(one section each; properties: for plugins)
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from duemq.auth.config import AuthConfig
from duemq.configuration.apache_keys import (
    check_refusals,
    not_known,
    without_effect,
)
from duemq.configuration.config import BrokerConfig
from duemq.exposure import listening_address
from duemq.net.own_address import own_address as own_address
from duemq.net.tls_config import TlsConfig
from duemq.replication.config import ReplicationConfig
from duemq.replication.controller.config import ControllerConfig
from duemq.replication.ha_server_config import HaServerConfig
from duemq.replication.role import Role
from message_store.config import (
    Properties,
    StoreConfig,
    from_properties,
    options,
    to_properties,
    with_live,
)
from message_store.errors import ConfigError

SECTIONS: tuple[type, ...] = (
    BrokerConfig,
    ReplicationConfig,
    HaServerConfig,
    ControllerConfig,
    TlsConfig,
    StoreConfig,
    AuthConfig,
)
SHOWN_CHARS_MAX = 200
_NAME_ANOTHER = "name one that the user of this process may write"


@dataclass(frozen=True, slots=True)
class Settings:
    """One broker's configuration, parsed and checked."""

    properties: Properties
    broker: BrokerConfig
    tls: TlsConfig
    store: StoreConfig
    auth: AuthConfig
    replication: ReplicationConfig
    ha_server: HaServerConfig
    controller: ControllerConfig

    @property
    def sections(self) -> tuple[object, ...]:
        """The sections, without `properties`."""
        return tuple(getattr(self, item.name) for item in fields(self) if item.name != "properties")


def settings_from(properties: Mapping[str, str]) -> Settings:
    """Parse and check properties; keys of plugins are left to the plugins.

    Raises:
        ConfigError: A value that cannot be used, or that DueMQ must refuse.
    """
    if not isinstance(properties, Properties):
        properties = Properties(properties)
    check_refusals(properties)
    broker = from_properties(BrokerConfig, properties)
    replication = from_properties(ReplicationConfig, properties)
    controller = from_properties(ControllerConfig, properties)
    if not controller.enabled:
        replication.check_id(broker.broker_id)
    return Settings(
        properties,
        broker,
        from_properties(TlsConfig, properties),
        from_properties(StoreConfig, properties),
        from_properties(AuthConfig, properties),
        replication,
        from_properties(HaServerConfig, properties),
        controller,
    )


def check_directories(config: StoreConfig) -> None:
    """Make the directories of the store, so that one that cannot be used is named with its key.

    Raises:
        ConfigError: A directory cannot be made or written.
    """
    for key, path in (
        ("storePathRootDir", config.root),
        ("storePathCommitLog", config.commitlog_dir),
    ):
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            why = f"the directory cannot be made ({error.strerror}); {_NAME_ANOTHER}"
            raise ConfigError(key, str(path), why) from error
        if not os.access(path, os.W_OK | os.X_OK):
            raise ConfigError(key, str(path), f"the directory cannot be written; {_NAME_ANOTHER}")


def resolved(settings: Settings) -> Settings:
    """Return the settings with this machine's name and addresses where none were given."""
    broker = settings.broker
    has_accounts = settings.auth.is_on
    bind_address = listening_address(broker.bind_address, has_accounts=has_accounts)
    broker = replace(
        broker,
        broker_name=broker.broker_name or socket.gethostname(),
        bind_address=bind_address,
        broker_ip=broker.broker_ip or own_address(bind_address),
    )
    return replace(settings, broker=broker)


def in_role(settings: Settings, role: Role | None) -> Settings:
    """Return the settings of a broker that a controller gave this role; None: as configured."""
    if role is None:
        return settings
    name = "SLAVE" if role.is_replica else "SYNC_MASTER"
    return replace(
        settings,
        broker=replace(settings.broker, broker_id=role.registered_id),
        replication=replace(settings.replication, role=name),
    )


def in_force(now: Settings, wanted: Settings) -> tuple[Settings, list[str]]:
    """Return `now` with the live values of `wanted`, and the keys whose change needs a restart."""
    taken: dict[str, Any] = {"properties": wanted.properties}
    later: list[str] = []
    for item in fields(now):
        if item.name not in taken:
            old, new = getattr(now, item.name), getattr(wanted, item.name)
            taken[item.name], keys = with_live(old, new)
            later += keys
    return replace(now, **taken), later


def values_in_force(settings: Settings, of_plugins: Iterable[type]) -> dict[str, str]:
    """Return every key with its value, of a broker and of the sections of its plugins."""
    known = dict[str, str]()
    plugins: Iterable[object] = (from_properties(each, settings.properties) for each in of_plugins)
    for section in (*settings.sections, *plugins):
        known |= to_properties(section)
    return {**settings.properties, **known}


def changed_values(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """Return one text for every key whose value differs, for the log."""
    return [
        f"{_short(key)}={_short(after.get(key, ''))} (was {_short(before.get(key, ''))})"
        for key in sorted(before.keys() | after.keys())
        if before.get(key, "") != after.get(key, "")
    ]


def _short(text: str) -> str:
    shown = text if text.isprintable() else ascii(text)
    return shown if len(shown) <= SHOWN_CHARS_MAX else shown[:SHOWN_CHARS_MAX] + "..."


def known_keys(sections: Iterable[type]) -> set[str]:
    """Return the keys of these sections."""
    return {item.key for section in sections for item in options(section)}


def key_notices(properties: Properties, sections: Iterable[type]) -> list[str]:
    """Return one line for every unknown key, and one for all of Apache's without effect."""
    known = known_keys(sections)
    lines = [str(key) for key in not_known(properties, known)]
    idle = without_effect(properties, known)
    if idle:
        lines.append(f"keys of Apache's without effect here: {', '.join(idle)}")
    return lines
