"""Validation of configuration changes by request: only keys declared with `wire=True`.

Requests may be unauthenticated. By changing a path, an address, a command or a class, any machine
that reaches the port could write files, redirect the broker or run programs, so keys are closed by
default. In the file on the broker's machine, every key can be set.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from duemq.configuration.apache_keys import WITHOUT_EFFECT, check_refusals
from duemq_common.codes import ResponseCode
from duemq_common.config import Option, Properties, options
from duemq_common.config_text import unknown_keys
from duemq_common.errors import ConfigError, RequestError

VALUE_CHARS_MAX = 65_536
SHOWN_KEYS_MAX = 8
KEY_CHARS_MAX = 64


def accepted_changes(
    changes: Mapping[str, str],
    sections: Iterable[type],
    blacklist: frozenset[str],
    *,
    source: str,
) -> dict[str, str]:
    """Return the permitted changes of a request, without Apache's keys that have no effect.

    Args:
        sections: Configuration classes with the known keys.
        blacklist: Further keys closed by configuration.
        source: Name of the request, for messages.
    Raises:
        RequestError: A key is closed to requests, or unknown.
        ConfigError: A value is too long, has control characters or is unsupported.
    """
    by_key = {item.key: item for section in sections for item in options(section)}
    _refuse_closed(changes, by_key, blacklist)
    check_refusals(Properties(changes, dict.fromkeys(changes, source)))
    without_effect = WITHOUT_EFFECT.keys() - by_key.keys()
    _refuse_unknown(changes, by_key, without_effect)
    for key, value in changes.items():
        _check_text(key, value, source)
    return {key: value for key, value in changes.items() if key in by_key}


def _refuse_closed(
    changes: Mapping[str, str], known_options: Mapping[str, Option], blacklist: frozenset[str]
) -> None:
    closed = {key for key in changes if key in known_options and not known_options[key].wire}
    refused = sorted(closed | (blacklist & changes.keys()))
    if refused:
        text = (
            f"Can not update config in black list: {_shown(refused)}. Set it in the configuration "
            "file on the broker's machine, then send SIGHUP or restart"
        )
        raise RequestError(ResponseCode.NO_PERMISSION, text)


def _refuse_unknown(
    changes: Mapping[str, str], known_options: Mapping[str, Option], without_effect: Iterable[str]
) -> None:
    idle_keys = frozenset(without_effect)
    strange = {key[:KEY_CHARS_MAX]: "" for key in changes if key not in idle_keys}
    unknown = unknown_keys(dict(list(strange.items())[: len(known_options)]), known_options)
    if unknown:
        near = f"; did you mean {unknown[0].nearest}?" if unknown[0].nearest else ""
        text = f"update config: unknown key {_shown([each.key for each in unknown])}{near}"
        raise RequestError(ResponseCode.SYSTEM_ERROR, text)


def _check_text(key: str, value: str, source: str) -> None:
    if len(value) > VALUE_CHARS_MAX:
        reason = f"has {len(value)} characters; the limit is {VALUE_CHARS_MAX}"
        raise ConfigError(key, value[:KEY_CHARS_MAX], reason, source=source)
    if not value.isprintable():
        reason = "has control characters"
        raise ConfigError(key, ascii(value[:KEY_CHARS_MAX]), reason, source=source)


def _shown(keys: list[str]) -> str:
    shown = [key if key.isidentifier() and key.isascii() else ascii(key) for key in keys]
    more = f" and {len(keys) - SHOWN_KEYS_MAX} more" if len(keys) > SHOWN_KEYS_MAX else ""
    return ", ".join(shown[:SHOWN_KEYS_MAX]) + more
