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
    "Admin": "duemq.client.admin",
    "Client": "duemq.client.client",
    "ClientError": "duemq.client.errors",
    "Closed": "duemq.client.errors",
    "ConsumeFrom": "duemq.client.subscriptions",
    "ConsumerSettings": "duemq.client.subscriptions",
    "Credentials": "duemq.auth.signature",
    "DEAD_LETTER": "duemq.client.subscriptions",
    "Filter": "duemq.client.filters",
    "LocalTransactionState": "duemq.client.transactions",
    "Message": "duemq.client.message",
    "MessageQueue": "duemq.client.message",
    "MessageSelection": "duemq.client.decisions",
    "NoReply": "duemq.client.replies",
    "NoRoute": "duemq.client.errors",
    "NotSent": "duemq.client.errors",
    "PendingDecisions": "duemq.client.decisions",
    "Producer": "duemq.client.producer",
    "PullConsumer": "duemq.client.pull_consumer",
    "Pulled": "duemq.client.pull_consumer",
    "PushConsumer": "duemq.client.push_consumer",
    "ReceivedMessage": "duemq.client.message",
    "Refused": "duemq.client.errors",
    "Reply": "duemq.client.replies",
    "Requester": "duemq.client.replies",
    "Retry": "duemq.client.subscriptions",
    "SendResult": "duemq.client.producer",
    "TransactionProducer": "duemq.client.transactions",
    "Unreachable": "duemq.client.errors",
    "Unsupported": "duemq.client.errors",
    "send_reply": "duemq.client.replies",
    "sql": "duemq.client.filters",
}
__getattr__, __dir__ = lazy_names(__name__, MODULES)
