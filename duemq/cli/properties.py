"""Properties of a process from its configuration file, the environment and the command line."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from duemq_common.config_text import Properties, read_properties
from duemq_common.errors import UsageError


def collect_properties(
    file: Path | None, overrides: Iterable[str] | None, namesrv: str = ""
) -> Properties:
    """Return the properties of a file, the environment and the command line; later ones win.

    NAMESRV_ADDR and ROCKETMQ_HOME apply only to keys that are not set otherwise, as for RocketMQ.

    Raises:
        ConfigError: The file cannot be read or parsed.
        UsageError: An override is not `KEY=VALUE`.
    """
    from duemq.configuration.environment import FROM_ENVIRONMENT, PREFIX

    properties = read_properties(file) if file else Properties()
    if any(name.startswith(PREFIX) for name in os.environ):
        properties = _with_environment(properties)
    from_environment = os.environ.get("NAMESRV_ADDR", "")
    if from_environment and "namesrvAddr" not in properties:
        properties = properties.merged(
            {"namesrvAddr": from_environment}, FROM_ENVIRONMENT + "NAMESRV_ADDR"
        )
    home = os.environ.get("ROCKETMQ_HOME", "")
    if home and "rocketmqHome" not in properties:
        properties = properties.merged({"rocketmqHome": home}, FROM_ENVIRONMENT + "ROCKETMQ_HOME")
    for text in overrides or ():
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"--set {text}: must be KEY=VALUE")
        properties = properties.merged({key.strip(): value.strip()}, "command line")
    if namesrv and namesrv != from_environment:
        properties = properties.merged({"namesrvAddr": namesrv}, "command line")
    return properties


def properties_of_broker(
    file: Path | None, overrides: Iterable[str] | None, namesrv: str = ""
) -> Properties:
    """Return the properties of a broker process.

    Without a file and without name servers, a name server runs inside the broker, so that clients
    and commands find it at their default address.

    Raises:
        ConfigError, UsageError: As `collect_properties`.
    """
    properties = collect_properties(file, overrides, namesrv)
    if file is None and not {"namesrvAddr", "embeddedNamesrvEnable"} & properties.keys():
        properties = properties.merged({"embeddedNamesrvEnable": "true"}, "default without a file")
    return properties


def _with_environment(properties: Properties) -> Properties:
    from duemq.cli.config_show import plugin_sections
    from duemq.configuration.environment import with_environment
    from duemq.configuration.settings import SECTIONS
    from duemq.namesrv.config import NamesrvConfig

    sections = [*SECTIONS, NamesrvConfig]
    return with_environment(properties, os.environ, sections, plugin_sections)
