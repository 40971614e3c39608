"""Replies (codes 324, 325), pushed to the requesting client (326). ReplyMessageProcessor.

The code of the response is the result of the push. Storing the reply is optional and does not
change the code.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import msgspec

from delayed_delivery.later_copies import SENT_BYTES_MAX
from duemq.auth.record_access import RecordAccess, UnrestrictedAccess, check_marker
from duemq.registry.clients import ClientTable
from duemq.registry.internal_topics import check_writable
from duemq.registry.managers import Identity, Putter
from duemq.registry.topics import TopicManager
from duemq.send.send_header import SendHeader, client_entries, parse_send, property_bytes
from duemq_common.clock import Clock
from duemq_common.codes import RequestCode, ResponseCode
from duemq_common.errors import RequestError
from duemq_common.request import Request, RequestHandler, Response
from duemq_common.topics import PERM_WRITE
from message_store.log.batch import PutBatch
from message_store.log.copies import refusal
from message_store.log.offset_id import encode_offset_id

if TYPE_CHECKING:
    from message_store.store import MessageStore

PUSH_TIMEOUT_S = 3.0
PAIR_BYTES_MIN = 4  # of a property: name, value and their two separators
SEND_CODE_OF = {
    RequestCode.SEND_REPLY_MESSAGE: RequestCode.SEND_MESSAGE,
    RequestCode.SEND_REPLY_MESSAGE_V2: RequestCode.SEND_MESSAGE_V2,
}


class ReplyProcessor:
    """Handler of codes 324 and 325.

    Args:
        records: Access check of the timers that messages cancel; None: no accounts.
        suffix: Encoded properties that the broker appends to every message.
    """

    def __init__(
        self,
        store: MessageStore,
        topics: TopicManager,
        clients: ClientTable,
        put: Putter,
        identity: Identity,
        clock: Clock,
        records: RecordAccess | None = None,
        *,
        suffix: bytes = b"",
    ) -> None:
        self._records = records or UnrestrictedAccess()
        self._store, self._topics, self._clients = store, topics, clients
        self._put, self._identity, self._clock = put, identity, clock
        self._suffix = suffix

    def handlers(self) -> dict[int, RequestHandler]:
        return dict.fromkeys(SEND_CODE_OF, self.reply)

    async def reply(self, request: Request) -> Response:
        """Push the reply and store it; return the result of the push and the stored offset.

        Raises:
            RequestError: Clients may not write to the topic of the reply, or the account may not
                cancel the timer that it names.
        """
        header = parse_send(
            msgspec.structs.replace(request, code=SEND_CODE_OF[RequestCode(request.code)])
        )
        self._check_topic(header.topic)
        pairs = client_entries(header.properties)
        entries = dict(pairs)
        check_marker(self._records, request, header.topic, entries)
        born_host = request.peer.address if request.peer else ("0.0.0.0", 0)
        fault = await self._push(header, entries, request, born_host)
        response = Response(
            ResponseCode.SYSTEM_ERROR if fault else ResponseCode.SUCCESS,
            fault,
            {"msgId": "0", "queueId": str(header.queue_id), "queueOffset": "0"},
        )
        if self._topics.find(header.topic) is not None:
            await self._store_reply(header, pairs, request, response)
        return response

    def _check_topic(self, name: str) -> None:
        check_writable(name)
        topic = self._topics.find(name)
        if topic is not None and not topic.perm & PERM_WRITE:
            raise RequestError(
                ResponseCode.NO_PERMISSION, f"sending message to topic [{name}] is forbidden"
            )

    async def _push(
        self,
        header: SendHeader,
        entries: dict[str, str],
        request: Request,
        born_host: tuple[str, int],
    ) -> str | None:
        """Push the reply to the requesting client; return the error text, None on success."""
        client_id = entries.get("REPLY_TO_CLIENT")
        if not client_id:
            return "REPLY_TO_CLIENT is null, can not reply message"
        channel = self._clients.find_client(client_id)
        if channel is None:
            return f"push reply message fail, channel of <{client_id}> not found."
        push = Request(
            RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT,
            self._push_fields(header, entries, born_host),
            request.body,
        )
        try:
            response = await channel.peer.call(push, timeout_s=PUSH_TIMEOUT_S)
        except TimeoutError:
            return f"push reply message to {client_id} fail: no response in {PUSH_TIMEOUT_S:.0f} s"
        except ConnectionError as error:
            return f"push reply message to {client_id} fail: {error}"
        if response.code != ResponseCode.SUCCESS:
            return f"push reply message to {client_id} fail: {response.remark}"
        return None

    def _push_fields(
        self, header: SendHeader, entries: dict[str, str], born_host: tuple[str, int]
    ) -> dict[str, str]:
        now_ms = self._clock.now_ms()
        pushed = {**entries, "PUSH_REPLY_TIME": str(now_ms)}
        address, port = self._identity.host
        store_ip = ".".join(map(str, address)) if len(address) == 4 else address.hex(":", 2)
        return {
            "producerGroup": header.group,
            "topic": header.topic,
            "defaultTopic": header.default_topic,
            "defaultTopicQueueNums": str(header.default_queues),
            "queueId": str(header.queue_id),
            "sysFlag": str(header.sys_flag),
            "bornTimestamp": str(header.born_ms),
            "flag": str(header.flag),
            "properties": property_bytes(list(pushed.items()), b"").decode(),
            "reconsumeTimes": str(header.reconsume_times),
            "unitMode": "true" if header.unit_mode else "false",
            "bornHost": f"{born_host[0]}:{born_host[1]}",
            "storeHost": f"{store_ip}:{port}",
            "storeTimestamp": str(now_ms),
        }

    async def _store_reply(
        self,
        header: SendHeader,
        pairs: list[tuple[str, str]],
        request: Request,
        response: Response,
    ) -> None:
        """Store the reply in its topic, and set id, queue and offset in `response`.

        A failure leaves the response unchanged.
        """
        if len(pairs) * PAIR_BYTES_MIN > SENT_BYTES_MAX:  # do not encode what is too long
            return
        topic = self._topics.find(header.topic)
        assert topic is not None
        queue_id = header.queue_id
        if queue_id < 0 or queue_id >= topic.write_queues:
            queue_id = random.randrange(max(topic.write_queues, 1))
        properties = property_bytes(pairs, self._suffix)
        if len(properties) > SENT_BYTES_MAX:
            return
        batch = PutBatch(1, len(request.body) + len(properties))
        batch.add(
            topic_index=self._store.topics.add(header.topic),
            queue_id=queue_id,
            body=request.body,
            properties=properties,
            born_ms=header.born_ms,
            born_host=getattr(request.peer, "born_host", self._identity.host),
            store_host=self._identity.host,
            flag=header.flag,
            sys_flag=header.sys_flag,
            reconsume_times=header.reconsume_times,
        )
        try:
            await self._put(batch)
        except RequestError:
            return
        if refusal(batch) is None and response.fields is not None:
            row = batch.rows[0]
            address, port = self._identity.host
            response.fields["msgId"] = encode_offset_id(address, port, int(row["phys_offset"]))
            response.fields["queueId"] = str(queue_id)
            response.fields["queueOffset"] = str(int(row["queue_offset"]))
