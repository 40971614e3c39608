"""Configuration keys from environment variables.

brokerName -> DUEMQ_BROKER_NAME        brokerIP1 -> DUEMQ_BROKER_IP1
tls.server.certPath -> DUEMQ_TLS_SERVER_CERT_PATH
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from duemq_common.config import Properties, options

PREFIX: Final = "DUEMQ_"
FROM_ENVIRONMENT: Final = "environment "
"""Begin of the source of a key from a variable; the name of the variable follows."""
OF_COMMANDS: Final = frozenset(
    {
        "DUEMQ_ACCESS_KEY",
        "DUEMQ_CLASS_ARCHIVE",
        "DUEMQ_CONTEXT",
        "DUEMQ_KERNEL_CACHE",
        "DUEMQ_SECRET_FILE",
        "DUEMQ_TLS",
        "DUEMQ_TLS_CA",
        "DUEMQ_TLS_CERT",
    }
)
"""Variables that are options of commands or paths, not keys."""
_WORD = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|[.-]")


def variable_of(key: str) -> str:
    """Return the environment variable of a key."""
    return PREFIX + _WORD.sub("_", key).upper()


def with_environment(
    properties: Properties,
    environment: Mapping[str, str],
    sections: Iterable[type],
    plugin_sections: Callable[[Properties], Iterable[type]],
) -> Properties:
    """Return the properties with the values of variables; a variable without a key becomes one.

    Args:
        sections: Sections that are always searched for the key of a variable.
        plugin_sections: Returns the sections of the plugins; called if a variable has no key in
            `sections`.
    """
    values = {
        name: text
        for name, text in environment.items()
        if name.startswith(PREFIX) and name not in OF_COMMANDS
    }
    properties, values = _merged(properties, values, sections)
    if values:
        properties, values = _merged(properties, values, plugin_sections(properties))
    for name in values:  # reported as an unknown key; the value may be a secret of other software
        properties = properties.merged({name: ""}, "environment")
    return properties


def _merged(
    properties: Properties, values: Mapping[str, str], sections: Iterable[type]
) -> tuple[Properties, dict[str, str]]:
    """Return the properties with the values of variables, and the variables without a key."""
    rest = dict(values)
    for section in sections:
        for item in options(section):
            name = variable_of(item.key)
            if name in rest:
                text = rest.pop(name)
                properties = properties.merged({item.key: text}, FROM_ENVIRONMENT + name)
    return properties, rest
