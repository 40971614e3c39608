"""Client of RocketMQ's remoting protocol, for DueMQ and for Apache's brokers.

    from duemq.client import Message, Producer

    async with Producer("127.0.0.1:9876") as producer:
        await producer.send(Message("orders", b"...", delay=timedelta(minutes=5)))

It needs neither NumPy nor Numba.
"""

from __future__ import annotations

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
