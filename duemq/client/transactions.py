"""Transactional sends: a half message, the local transaction, its outcome.

send half --> local transaction --> commit or roll back
                                          ^
broker asks later for an outcome that it did not get: `check`
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Final, Unpack

from duemq.client.connection import ServerConnection
from duemq.client.errors import ClientError, NoRoute
from duemq.client.message import Message, MessageQueue, ReceivedMessage
from duemq.client.producer import Producer, ProducerOptions, SendResult
from duemq_common.codes import RequestCode
from duemq_common.request import Request
from message_store.log.layout import SYS_COMMIT, SYS_PREPARED, SYS_ROLLBACK
from message_store.log.offset_id import decode_offset_id
from message_store.log.record import decode_record

log = logging.getLogger(__name__)


class LocalTransactionState(Enum):
    """LocalTransactionState of a local transaction."""

    COMMIT = SYS_COMMIT
    ROLLBACK = SYS_ROLLBACK
    UNKNOWN = 0


Local = Callable[[Message], Awaitable[LocalTransactionState]]
"""Runs the local transaction of a message."""
Check = Callable[[ReceivedMessage], Awaitable[LocalTransactionState]]
"""Finds out the outcome of an earlier transaction."""
UNSENT_LOG: Final = "the %s of message %s is not sent; the broker will ask for it: %s"
UNKNOWN_LOG: Final = "the local transaction of message %s failed; the broker will ask again"


class TransactionProducer(Producer):
    """Producer of transactional messages. TransactionMQProducer

    Args:
        check: Returns the outcome of a transaction when the broker asks for it, for example after a
            restart of this process.
        options: As in `Producer`; the group must be that of the other producers with the same
            `check`.
    """

    def __init__(
        self, namesrv: str = "", *, check: Check, **options: Unpack[ProducerOptions]
    ) -> None:
        super().__init__(namesrv, **options)
        self._check = check
        self.client.heartbeats.add_producer(self.group)
        self.client.handle(RequestCode.CHECK_TRANSACTION_STATE, self._checked)

    async def send_in_transaction(self, message: Message, local: Local) -> SendResult:
        """Send a half message, run the local transaction, and commit or roll back.

        The message is rolled back if `local` raises, and the error is raised again. With UNKNOWN,
        or if the outcome cannot be sent, the broker asks `check` later.

        Raises:
            ValueError: The message has a level, which Apache's brokers do not apply at the commit,
                or a priority, which brokers remove.
            NotSent, Refused: As `send`; the local transaction did not run.
        """
        if message.level:
            raise ValueError("a transactional message cannot have a level: give delay")
        if message.priority is not None:
            raise ValueError("a transactional message cannot have a priority")
        half = {"TRAN_MSG": "true", "PGROUP": self.group}
        route = await self.client.route(message.topic)
        await self.client.heartbeats.before_use(route.masters())
        sent = await self.send_with(message, half, sys_flag=SYS_PREPARED)
        try:
            outcome = await local(message)
        except BaseException:
            await asyncio.shield(self._end(message, sent, LocalTransactionState.ROLLBACK))
            raise
        await self._end(message, sent, outcome)
        return sent

    async def _end_work(self) -> None:
        """Wait for the sends in flight, and unregister the group."""
        await super()._end_work()
        await self.client.heartbeats.remove(producer=self.group)

    async def _end(
        self, message: Message, sent: SendResult, outcome: LocalTransactionState
    ) -> None:
        try:
            await self._send_outcome(message, sent, outcome)
        except (ClientError, OSError) as error:
            log.warning(UNSENT_LOG, outcome.name, message.message_id, error)

    async def _send_outcome(
        self, message: Message, sent: SendResult, outcome: LocalTransactionState
    ) -> None:
        route = await self.client.route(message.topic)
        address = route.master(sent.queue.broker_name)
        if not address:
            raise NoRoute(f"broker {sent.queue.broker_name} has no master")
        _, _, log_offset = decode_offset_id(sent.offset_message_id)
        fields = {
            "topic": message.topic,
            "producerGroup": self.group,
            "tranStateTableOffset": sent.queue_offset,
            "commitLogOffset": log_offset,
            "commitOrRollback": outcome.value,
            "fromTransactionCheck": False,
            "msgId": message.message_id,
            "transactionId": message.message_id,
        }
        await self.client.notify(address, RequestCode.END_TRANSACTION, fields)

    async def _checked(self, request: Request, connection: ServerConnection) -> None:
        """Answer the broker's question for the outcome of a half message."""
        record = decode_record(memoryview(request.body), 0)
        queue = MessageQueue(record.topic, request.fields.get("bname", ""), record.queue_id)
        try:
            outcome = await self._check(ReceivedMessage(record, queue))
        except Exception:
            log.exception(UNKNOWN_LOG, request.fields.get("msgId"))
            outcome = LocalTransactionState.UNKNOWN
        fields = {
            "topic": request.fields.get("topic"),
            "producerGroup": self.group,
            "tranStateTableOffset": request.fields["tranStateTableOffset"],
            "commitLogOffset": request.fields["commitLogOffset"],
            "commitOrRollback": outcome.value,
            "fromTransactionCheck": True,
            "msgId": request.fields.get("msgId") or record.properties.get("UNIQ_KEY", ""),
            "transactionId": request.fields.get("transactionId"),
        }
        await self.client.notify(connection.address, RequestCode.END_TRANSACTION, fields)
