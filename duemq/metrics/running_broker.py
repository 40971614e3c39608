"""A running broker as the collectors of its figures see it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from duemq.assembly import Parts
from duemq.auth.access import AccessControl
from duemq.configuration.config import BrokerConfig
from duemq.net.connection import Connection
from duemq.net.tls import Tls
from message_store.clock import Clock
from message_store.store import MessageStore


class RunningBroker(Protocol):
    """The part of `duemq.broker.Broker` that collectors read.

    Attributes:
        failure: why the broker must be restarted, or an empty text.
        stops: whether the broker is about to stop.
    """

    @property
    def config(self) -> BrokerConfig: ...
    @property
    def failure(self) -> str: ...
    @property
    def stops(self) -> bool: ...
    @property
    def store(self) -> MessageStore: ...
    @property
    def parts(self) -> Parts: ...
    @property
    def clock(self) -> Clock: ...
    @property
    def connections(self) -> Collection[Connection]: ...
    @property
    def access(self) -> AccessControl | None: ...
    @property
    def tls(self) -> Tls: ...
