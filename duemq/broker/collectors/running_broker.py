"""Interface of a running broker for metrics collectors."""

from __future__ import annotations

from typing import Protocol

from duemq.auth.access import AccessControl
from duemq.broker.components import BrokerComponents
from duemq.configuration.config import BrokerConfig
from duemq.net.tls import Tls
from duemq_common.clock import Clock
from message_store.store import MessageStore


class RunningBroker(Protocol):
    """Attributes of `Broker` that collectors read.

    Attributes:
        failure: Reason why the broker must be restarted; empty: it need not.
        stops: Whether the broker is stopping.
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
    def parts(self) -> BrokerComponents: ...
    @property
    def clock(self) -> Clock: ...
    @property
    def access(self) -> AccessControl | None: ...
    @property
    def tls(self) -> Tls: ...
