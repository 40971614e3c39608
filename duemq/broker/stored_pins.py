"""Retention pins for pending messages of plugins that are not loaded.

A disabled plugin (`brokerPluginDisabled`) may have pending messages in the store. They were
acknowledged, so retention must keep them; a log line reports the plugin.

    entry point   timer_store.plugin:create_plugin      not imported
    same package  timer_store.stored_pin:stored_pin     optional: reads the pin from the store
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from importlib import import_module
from importlib.metadata import EntryPoint
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from duemq.broker.plugins import installed_entries
from message_store.retention.pins import UNKNOWN, FirstPending, Pin

if TYPE_CHECKING:
    from message_store.store import MessageStore

log = logging.getLogger(__name__)
Reader = Callable[["MessageStore"], FirstPending]
MODULE: Final = "stored_pin"


def stored_pins(store: MessageStore, loaded: Collection[str]) -> dict[str, Pin]:
    """Return constant pins of the plugins that are not loaded.

    Args:
        loaded: Names of the loaded plugins, which provide their own pins.
    """
    entries = installed_entries()
    return {item.name: _constant(_read(store, item)) for item in entries if item.name not in loaded}


def _read(store: MessageStore, item: EntryPoint) -> FirstPending:
    try:
        reader = _reader(item)
        pin = None if reader is None else reader(store)
    except Exception as error:
        log.error(
            "plugin %s is not loaded, and its messages in %s cannot be read (%s: %s): no log file "
            "is removed. Enable or uninstall it",
            item.name,
            store.root,
            type(error).__name__,
            error,
        )
        return UNKNOWN
    if pin is not None:
        log.warning(
            "plugin %s is not loaded, but has pending messages in %s: their log files are kept. "
            "Remove it from brokerPluginDisabled to deliver them",
            item.name,
            store.root,
        )
    return pin


def _reader(item: EntryPoint) -> Reader | None:
    """Return a plugin's function that reads its pin from a store; None if it has none."""
    package, dot, _ = item.module.rpartition(".")
    name = f"{package}.{MODULE}"
    if not dot or find_spec(name) is None:
        return None
    reader: Reader = import_module(name).stored_pin
    return reader


def _constant(response: FirstPending) -> Pin:
    return lambda: response
