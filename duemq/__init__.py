"""DueMQ: a RocketMQ-compatible broker for delayed messages.

    from duemq import Message, Producer  # a client, without NumPy and Numba
    from duemq import Broker            # a broker in your own event loop
    from duemq import TimerDirectory    # timers in your own program, without a broker
    python -m duemq --help              # the command

Public names are imported at their first use, so that `import duemq` is fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from duemq.broker.broker import Broker
    from duemq.client import Admin, Message, Producer, PullConsumer, PushConsumer
    from timer_store.directory import TimerDirectory

__all__ = [
    "Admin",
    "Broker",
    "Message",
    "Producer",
    "PullConsumer",
    "PushConsumer",
    "TimerDirectory",
]
MODULES = {
    "Admin": "duemq.client",
    "Broker": "duemq.broker.broker",
    "Message": "duemq.client",
    "Producer": "duemq.client",
    "PullConsumer": "duemq.client",
    "PushConsumer": "duemq.client",
    "TimerDirectory": "timer_store.directory",
}


def __getattr__(name: str) -> object:
    """Import a public name at its first use."""
    if name not in MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
