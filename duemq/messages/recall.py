"""Recall request (370): cancellation of a timer by its recall handle.

The plugin that owns timers returns the result: done, already delivered or unknown. If no plugin
handles recalls, the broker stores a marker, as Apache does; success then only means that the marker
is stored.

Source: RecallMessageProcessor
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from delivery.markers import MARKER, RECALL_TAG
from delivery.plugin import Recalled, Recalls, Request, RequestHandler, Response
from duemq.auth.record_access import RecordAccess, UnrestrictedAccess
from duemq.configuration.config import BrokerConfig
from duemq.messages.copies import not_confirmed, refusal
from duemq.messages.recall_handle import HandleError, RecallHandle, decode_handle
from duemq.net import fields
from duemq.net.codes import RequestCode, ResponseCode
from duemq.ports import PERM_WRITE, Identity, Putter, Topics
from duemq.registry.internal_topics import check_writable
from message_store.clock import Clock
from message_store.errors import RequestError
from message_store.log.batch import PutBatch
from message_store.log.properties import encode_properties

if TYPE_CHECKING:
    from message_store.store import MessageStore

log = logging.getLogger(__name__)
MARKER_BODY: Final = b"0"
TIME_DIGITS_MAX: Final = 18
SLOT_MS_MAX: Final = 1_000  # a timer may be due this long after the time in its handle
REMARKS: Final = {
    Recalled.DELIVERED: "the message is already delivered",
    Recalled.UNKNOWN: "no such message is pending: it was cancelled, moved or never stored here",
}


class RecallProcessor:
    """Handler of recall requests (370).

    Args:
        recalls: Component that owns timers; None: markers are stored.
        records: Access check and audit log of cancels; None: no accounts.
    """

    def __init__(
        self,
        store: MessageStore,
        topics: Topics,
        put: Putter,
        identity: Identity,
        clock: Clock,
        config: Callable[[], BrokerConfig],
        recalls: Recalls | None,
        records: RecordAccess | None = None,
    ) -> None:
        self._records = records or UnrestrictedAccess()
        self._store, self._topics, self._put = store, topics, put
        self._identity, self._clock, self._config = identity, clock, config
        self._recalls = recalls

    def handlers(self) -> dict[int, RequestHandler]:
        return {RequestCode.RECALL_MESSAGE: self.recall}

    async def recall(self, request: Request) -> Response:
        """Cancel the timer of a recall handle.

        Raises:
            RequestError: Recall is not allowed, the handle is not valid on this broker, or the
                timer is delivered or unknown (604, unless `recallReportsUnknown` is false).
        """
        topic, text = (
            fields.text(request, "topic"),
            fields.text(request, "recallHandle"),
        )
        self._check_service()
        check_writable(topic)
        if self._topics.find(topic) is None:
            raise RequestError(
                ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist, apply first please!"
            )
        handle = self._handle_of(topic, text)
        time_ms = self._time_of(handle)
        self._records.check_cancel(request, handle.topic, sent_to=topic)
        if self._recalls is None:
            await self._put_marker(request, handle, time_ms)
        else:
            result = await self._recalls.recall(topic, time_ms, handle.unique_id)
            if result is not Recalled.DONE and self._config().recall_reports_unknown:
                raise _illegal(REMARKS[result])
        region = self._config().region_id
        return Response(fields={"msgId": handle.unique_id, "MSG_REGION": region})

    # Checks.

    def _check_service(self) -> None:
        config = self._config()
        if not config.recall_enable:
            raise RequestError(
                ResponseCode.NO_PERMISSION,
                "recall failed, operation is forbidden: recallMessageEnable is false",
            )
        if self._clock.now_ms() < config.start_accept_ms:
            raise RequestError(
                ResponseCode.SERVICE_NOT_AVAILABLE,
                f"broker unable to service, until {config.start_accept_ms} ms since 1970",
            )
        if not config.permission & PERM_WRITE and not config.recall_unwritable:
            raise RequestError(
                ResponseCode.SERVICE_NOT_AVAILABLE,
                "broker service not available: the broker is not writable, and "
                "allowRecallWhenBrokerNotWriteable is false",
            )

    def _handle_of(self, topic: str, text: str) -> RecallHandle:
        try:
            handle = decode_handle(text)
        except HandleError as error:
            raise _illegal(str(error)) from error
        if handle.topic != topic:
            raise _illegal("topic not match: the handle is for another topic")
        if handle.broker_name != self._identity.broker_name:
            raise _illegal("broker not match: the handle was issued by another broker")
        return handle

    def _time_of(self, handle: RecallHandle) -> int:
        """Return the time in a handle, in ms since the epoch.

        Raises:
            RequestError: The handle has no time, or the time is past. If a plugin owns timers, the
                time may be up to SLOT_MS_MAX in the past.
        """
        text = handle.time_text
        if not (text.isascii() and text.isdigit() and len(text) <= TIME_DIGITS_MAX):
            raise _illegal("timestamp invalid: the handle has no time")
        time_ms = int(text)
        now_ms, grace_ms = self._clock.now_ms(), 0 if self._recalls is None else SLOT_MS_MAX
        if time_ms + grace_ms <= now_ms:
            raise _illegal("timestamp invalid: the time in the handle is past")
        return time_ms

    # Marker.

    async def _put_marker(self, request: Request, handle: RecallHandle, time_ms: int) -> None:
        now_ms = self._clock.now_ms()
        properties = {
            "TAGS": RECALL_TAG,
            "UNIQ_KEY": handle.unique_id,
            MARKER: f"{handle.topic}+{handle.unique_id}",
            "TIMER_DELIVER_MS": str(time_ms),
            "PGROUP": request.fields.get("producerGroup", ""),
            "BORN_TIMESTAMP": str(now_ms),
        }
        batch = PutBatch(1)
        batch.add(
            topic_index=self._store.topics.add(handle.topic),
            queue_id=0,
            body=MARKER_BODY,
            properties=encode_properties({k: v for k, v in properties.items() if v}),
            born_ms=now_ms,
            born_host=getattr(request.peer, "born_host", self._identity.host),
            store_host=self._identity.host,
        )
        missing = await self._put(batch)
        fault = refusal(batch)
        if batch.rows[0]["status"] == ResponseCode.MESSAGE_ILLEGAL:  # beyond timerMaxDelaySec
            raise _illegal(f"timestamp invalid: {fault}")
        if fault is not None:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"recall failed: {fault}")
        if missing:
            raise not_confirmed("the recall was stored", missing)


def _illegal(why: str) -> RequestError:
    return RequestError(ResponseCode.ILLEGAL_OPERATION, f"recall failed, {why}")
