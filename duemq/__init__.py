"""DueMQ: a RocketMQ-compatible broker for delayed messages.

    from duemq import Message, Producer  # a client, without NumPy and Numba
    from duemq import Broker            # a broker in your own event loop
    from duemq import TimerDirectory    # timers in your own program, without a broker
    python -m duemq --help              # the command

Public names are imported at their first use, so that `import duemq` is fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from duemq_common.lazy_names import lazy_names

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
    "duemq.broker.broker": ["Broker"],
    "duemq.client": ["Admin", "Message", "Producer", "PullConsumer", "PushConsumer"],
    "timer_store.directory": ["TimerDirectory"],
}
__getattr__, __dir__ = lazy_names(__name__, MODULES)
