"""Settings of a broker process: all sections, parsed from one set of properties.

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
    unknown_key_list,
    without_effect,
)
from duemq.configuration.config import BrokerConfig
from duemq.configuration.controller_config import ControllerConfig
from duemq.configuration.environment import FROM_ENVIRONMENT
from duemq.configuration.exposure import listening_address
from duemq.configuration.ha_server_config import HaServerConfig
from duemq.configuration.replication_config import ReplicationConfig
from duemq.configuration.rocksdb_tables import check_tables
from duemq.configuration.tracing_config import TracingConfig
from duemq.net.own_address import own_address as own_address
from duemq.net.tls_config import TlsConfig
from duemq_common.config import (
    Properties,
    errors_name_sources,
    from_properties,
    options,
    to_properties,
    with_live,
)
from duemq_common.errors import ConfigError
from message_store.config import StoreConfig

SECTIONS: tuple[type, ...] = (
    BrokerConfig,
    ReplicationConfig,
    HaServerConfig,
    ControllerConfig,
    TlsConfig,
    StoreConfig,
    AuthConfig,
    TracingConfig,
)
SHOWN_CHARS_MAX = 200
_SET_WRITABLE = "set a directory that the user of this process can write"


@dataclass(frozen=True, slots=True)
class Settings:
    """Parsed and validated configuration of one broker."""

    properties: Properties
    broker: BrokerConfig
    tls: TlsConfig
    store: StoreConfig
    auth: AuthConfig
    replication: ReplicationConfig
    ha_server: HaServerConfig
    controller: ControllerConfig
    tracing: TracingConfig

    @property
    def sections(self) -> tuple[object, ...]:
        """The sections, without `properties`."""
        return tuple(getattr(self, item.name) for item in fields(self) if item.name != "properties")


def settings_from(properties: Mapping[str, str]) -> Settings:
    """Parse and validate properties, except keys of plugins.

    Raises:
        ConfigError: A value is invalid or unsupported.
    """
    if not isinstance(properties, Properties):
        properties = Properties(properties)
    check_refusals(properties)
    broker = from_properties(BrokerConfig, properties)
    replication = from_properties(ReplicationConfig, properties)
    controller = from_properties(ControllerConfig, properties)
    if not controller.enabled:
        with errors_name_sources(properties):
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
        from_properties(TracingConfig, properties),
    )


def check_directories(config: StoreConfig) -> None:
    """Create the directories of the store, and check that this broker can read and write them.

    Raises:
        ConfigError: A directory cannot be created or written, or RocksDB has tables of the store.
    """
    for key, path in (
        ("storePathRootDir", config.root),
        ("storePathCommitLog", config.commitlog_dir),
    ):
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            reason = f"the directory cannot be created ({error.strerror}); {_SET_WRITABLE}"
            raise ConfigError(key, str(path), reason) from error
        if not os.access(path, os.W_OK | os.X_OK):
            raise ConfigError(key, str(path), f"the directory cannot be written; {_SET_WRITABLE}")
    check_tables(config.root)


def resolved(settings: Settings) -> Settings:
    """Return the settings with this machine's name and addresses as defaults."""
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


def with_live_changes(now: Settings, new_settings: Settings) -> tuple[Settings, list[str]]:
    """Return `now` with the live values of `new_settings`, and the keys that need a restart."""
    merged_values: dict[str, Any] = {"properties": new_settings.properties}
    later: list[str] = []
    for item in fields(now):
        if item.name not in merged_values:
            old, new = getattr(now, item.name), getattr(new_settings, item.name)
            merged_values[item.name], keys = with_live(old, new)
            later += keys
    return replace(now, **merged_values), later


def current_values(settings: Settings, plugin_sections: Iterable[type]) -> dict[str, str]:
    """Return every key of a broker and its plugins with its current value."""
    values = dict[str, str]()
    plugins: Iterable[object] = (
        from_properties(each, settings.properties) for each in plugin_sections
    )
    for section in (*settings.sections, *plugins):
        values |= to_properties(section)
    return {**settings.properties, **values}


def changed_values(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """Return a log text for every changed key."""
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
    """Return a log line for each unknown key, and one for all keys of Apache's without effect.

    A key of another section is not unknown if it comes from the environment: an image sets the
    variables of brokers for name servers as well.
    """
    elsewhere = {key for key in properties if properties.source(key).startswith(FROM_ENVIRONMENT)}
    keys = known_keys(sections) | elsewhere
    lines = [str(key) for key in unknown_key_list(properties, keys)]
    idle = without_effect(properties, keys)
    if idle:
        lines.append(f"Apache's keys without effect: {', '.join(idle)}")
    return lines
