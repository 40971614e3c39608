"""Keys of Apache 4.9, 5.3.3 and 5.5.1 that DueMQ ignores, and values that it refuses.

An existing `broker.conf` can be used unchanged: the keys of `apache_keys.txt` have no effect, for
the given reason. A value that requests an unsupported guarantee (access control, replicas, another
store format) prevents the start instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from msgspec import Struct

from duemq_common.config_text import Properties, UnknownKey, unknown_keys
from duemq_common.errors import ConfigError

KEYS_FILE: Final = Path(__file__).with_name("apache_keys.txt")


def _keys_without_effect() -> Iterator[tuple[str, str]]:
    reason = ""
    for line in KEYS_FILE.read_text("utf-8").splitlines():
        if line.startswith("= "):
            reason = line.removeprefix("= ")
        elif not line.startswith("#"):
            yield from ((key, reason) for key in line.split())


WITHOUT_EFFECT: Mapping[str, str] = dict(_keys_without_effect())
"""Reasons by key for Apache's keys without effect."""


class Refusal(Struct, frozen=True):
    """Key with its only accepted values, and the remedy for other values."""

    key: str
    allowed: tuple[str, ...]
    reason: str


_NO_DLEDGER = (
    "DLedger's commit log has another format; for a group with election set "
    "enableControllerMode=true and controllerAddr instead"
)
_NO_COPY = "plain_acl.yml is not converted to users; set aclEnable, or create users by mqadmin"
REFUSALS = (
    Refusal("migrateAuthFromV1Enabled", ("false",), _NO_COPY),
    Refusal(
        "storeType",
        ("default",),
        "only file-based consume queues are supported; convert the store with Apache's broker",
    ),
    Refusal("enableDLegerCommitLog", ("false",), _NO_DLEDGER),
    Refusal(
        "enableConsumeQueueExt",
        ("false",),
        "extended consume queues are not supported; remove this key and delete consumequeue to "
        "rebuild plain queues from the commit log",
    ),
)


def check_refusals(properties: Mapping[str, str]) -> None:
    """Raise ConfigError for a value that requires an unsupported guarantee."""
    for refusal in REFUSALS:
        value = properties.get(refusal.key)
        if value is not None and value.lower() not in map(str.lower, refusal.allowed):
            source = properties.source(refusal.key) if isinstance(properties, Properties) else ""
            raise ConfigError(refusal.key, value, refusal.reason, source=source)


def without_effect(properties: Mapping[str, str], known_keys: set[str]) -> list[str]:
    """Return the configured keys of Apache's without effect, sorted."""
    return sorted(key for key in properties if key in WITHOUT_EFFECT and key not in known_keys)


def unknown_key_list(properties: Mapping[str, str], known_keys: set[str]) -> list[UnknownKey]:
    """Return the keys that neither DueMQ nor Apache defines, with the most similar known key."""
    own = {key: value for key, value in properties.items() if key not in WITHOUT_EFFECT}
    if isinstance(properties, Properties):
        own_with_source = Properties(own, {key: properties.source(key) for key in own})
        return unknown_keys(own_with_source, known_keys)
    return unknown_keys(own, known_keys)
