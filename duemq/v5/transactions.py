"""Handler of EndTransaction, and checks of unresolved transactions.

Source: EndTransactionActivity
"""

from __future__ import annotations

import logging
from typing import Final

from duemq.net.notices import Notices
from duemq.v5 import checks
from duemq.v5.broker_requests import BrokerRequests
from duemq.v5.clients import V5Client
from duemq.v5.context import CallContext
from duemq.v5.messages import message_of
from duemq.v5.protocol import definition as v2
from duemq.v5.protocol import service as api
from duemq.v5.status import V5Error, status
from duemq.v5.transaction_id import encode_transaction_id, offsets_of
from duemq_common.codes import RequestCode
from duemq_common.errors import RecordUnreadable
from duemq_common.request import Request
from message_store.layout import SYS_COMMIT, SYS_ROLLBACK
from message_store.log.record import decode_record

log = logging.getLogger(__name__)
_RESOLUTIONS: Final = {v2.COMMIT: SYS_COMMIT, v2.ROLLBACK: SYS_ROLLBACK}


class TransactionCalls:
    """Handler of EndTransaction; forwards the broker's checks to producers."""

    def __init__(self, requests: BrokerRequests) -> None:
        self._requests = requests
        self._failed = Notices(log)

    async def end(
        self, context: CallContext, client: V5Client, request: api.EndTransactionRequest
    ) -> api.EndTransactionResponse:
        """Commit or roll back a half message; ignore other resolutions."""
        topic = checks.topic_of(request.topic)
        if not request.transaction_id.strip():
            raise V5Error(v2.INVALID_TRANSACTION_ID, "transaction id cannot be empty")
        log_offset, queue_offset = offsets_of(request.transaction_id)
        resolution = _RESOLUTIONS.get(request.resolution)
        if resolution is not None:
            is_check = request.source == v2.SOURCE_SERVER_CHECK
            fields = {
                "topic": topic,
                "producerGroup": topic,
                "tranStateTableOffset": str(queue_offset),
                "commitLogOffset": str(log_offset),
                "commitOrRollback": str(resolution),
                "fromTransactionCheck": "true" if is_check else "false",
                "msgId": request.message_id,
                "transactionId": request.message_id,
            }
            code = RequestCode.END_TRANSACTION
            await self._requests.call_or_raise(context, client, code, fields)
        return api.EndTransactionResponse(status=status(v2.OK))

    def forward_check(self, client: V5Client, request: Request) -> None:
        """Forward the check of a transaction to a producer; drop other requests."""
        if request.code != RequestCode.CHECK_TRANSACTION_STATE or client.command is None:
            return
        try:
            half = decode_record(memoryview(request.body), 0, check_crc=False)
        except RecordUnreadable as error:
            self._failed("%r: a half message cannot be checked: %s", client, error)
            return
        log_offset = int(request.fields["commitLogOffset"])
        queue_offset = int(request.fields["tranStateTableOffset"])
        command = api.TelemetryCommand()
        check = command.recover_orphaned_transaction_command
        check.message.CopyFrom(message_of(half, topic=half.topic))
        check.transaction_id = encode_transaction_id(log_offset, queue_offset)
        client.command(command)
