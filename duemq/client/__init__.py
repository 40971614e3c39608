"""Client of RocketMQ's remoting protocol, for DueMQ and for Apache's brokers.

    from duemq.client import Message, Producer

    async with Producer("127.0.0.1:9876") as producer:
        await producer.send(Message("orders", b"...", delay=timedelta(minutes=5)))

It needs neither NumPy nor Numba. Public names are imported at their first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from duemq_common.lazy_names import lazy_names

if TYPE_CHECKING:
    from duemq.auth.signature import Credentials
    from duemq.client.admin import Admin
    from duemq.client.client import Client
    from duemq.client.decisions import MessageSelection, PendingDecisions
    from duemq.client.errors import (
        ClientError,
        Closed,
        NoRoute,
        NotSent,
        Refused,
        Unreachable,
        Unsupported,
    )
    from duemq.client.filters import Filter, sql
    from duemq.client.message import Message, MessageQueue, ReceivedMessage
    from duemq.client.producer import Producer, SendResult
    from duemq.client.pull_consumer import PullConsumer, Pulled
    from duemq.client.push_consumer import PushConsumer
    from duemq.client.replies import NoReply, Reply, Requester, send_reply
    from duemq.client.subscriptions import DEAD_LETTER, ConsumeFrom, ConsumerSettings, Retry
    from duemq.client.transactions import LocalTransactionState, TransactionProducer

__all__ = [
    "DEAD_LETTER",
    "Admin",
    "Client",
    "ClientError",
    "Closed",
    "ConsumeFrom",
    "ConsumerSettings",
    "Credentials",
    "Filter",
    "LocalTransactionState",
    "Message",
    "MessageQueue",
    "MessageSelection",
    "NoReply",
    "NoRoute",
    "NotSent",
    "PendingDecisions",
    "Producer",
    "PullConsumer",
    "Pulled",
    "PushConsumer",
    "ReceivedMessage",
    "Refused",
    "Reply",
    "Requester",
    "Retry",
    "SendResult",
    "TransactionProducer",
    "Unreachable",
    "Unsupported",
    "send_reply",
    "sql",
]
MODULES: Final = {
    "duemq.auth.signature": ["Credentials"],
    "duemq.client.admin": ["Admin"],
    "duemq.client.client": ["Client"],
    "duemq.client.decisions": ["MessageSelection", "PendingDecisions"],
    "duemq.client.errors": [
        "ClientError",
        "Closed",
        "NoRoute",
        "NotSent",
        "Refused",
        "Unreachable",
        "Unsupported",
    ],
    "duemq.client.filters": ["Filter", "sql"],
    "duemq.client.message": ["Message", "MessageQueue", "ReceivedMessage"],
    "duemq.client.producer": ["Producer", "SendResult"],
    "duemq.client.pull_consumer": ["PullConsumer", "Pulled"],
    "duemq.client.push_consumer": ["PushConsumer"],
    "duemq.client.replies": ["NoReply", "Reply", "Requester", "send_reply"],
    "duemq.client.subscriptions": ["ConsumeFrom", "ConsumerSettings", "DEAD_LETTER", "Retry"],
    "duemq.client.transactions": ["LocalTransactionState", "TransactionProducer"],
}
__getattr__, __dir__ = lazy_names(__name__, MODULES)
