"""Recall request (370): cancellation of a timer by its recall handle.

The plugin that owns timers returns the result: done, already delivered or unknown. Without one, a
recall is refused: there are no timers.

Source: RecallMessageProcessor
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from delayed_delivery.plugin import Recalled, Recalls
from duemq.auth.record_access import RecordAccess, UnrestrictedAccess
from duemq.configuration.config import BrokerConfig
from duemq.net import fields
from duemq.registry.internal_topics import check_writable
from duemq.registry.managers import Identity
from duemq.registry.topics import TopicManager
from duemq_common.clock import Clock
from duemq_common.codes import RequestCode, ResponseCode
from duemq_common.errors import RequestError
from duemq_common.recall_handle import HandleError, RecallHandle, decode_handle
from duemq_common.request import Request, RequestHandler, Response
from duemq_common.topics import PERM_WRITE

TIME_DIGITS_MAX: Final = 18
SLOT_MS_MAX: Final = 1_000  # a timer may be due this long after the time in its handle
NO_TIMERS: Final = "recall failed: this broker has no timer store: timerWheelEnable is false"
REMARKS: Final = {
    Recalled.DELIVERED: "the message is already delivered",
    Recalled.UNKNOWN: "no such message is pending: it was cancelled, moved or never stored here",
}


class RecallProcessor:
    """Handler of recall requests (370).

    Args:
        recalls: Component that owns timers; None: recalls are refused.
        records: Access check and audit log of cancels; None: no accounts.
    """

    def __init__(
        self,
        topics: TopicManager,
        identity: Identity,
        clock: Clock,
        config: Callable[[], BrokerConfig],
        recalls: Recalls | None,
        records: RecordAccess | None = None,
    ) -> None:
        self._records = records or UnrestrictedAccess()
        self._topics = topics
        self._identity, self._clock, self._config = identity, clock, config
        self._recalls = recalls

    def handlers(self) -> dict[int, RequestHandler]:
        return {RequestCode.RECALL_MESSAGE: self.recall}

    async def recall(self, request: Request) -> Response:
        """Cancel the timer of a recall handle.

        Raises:
            RequestError: Recall is not allowed, the handle is not valid on this broker, or the
                timer is delivered or unknown (604, unless `recallReportsUnknown` is false), or the
                broker has no timers (1).
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
            raise RequestError(ResponseCode.SYSTEM_ERROR, NO_TIMERS)
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
            RequestError: The handle has no time, or its time is SLOT_MS_MAX or more in the past.
        """
        text = handle.time_text
        if not (text.isascii() and text.isdigit() and len(text) <= TIME_DIGITS_MAX):
            raise _illegal("timestamp invalid: the handle has no time")
        time_ms = int(text)
        if time_ms + SLOT_MS_MAX <= self._clock.now_ms():
            raise _illegal("timestamp invalid: the time in the handle is past")
        return time_ms


def _illegal(reason: str) -> RequestError:
    return RequestError(ResponseCode.ILLEGAL_OPERATION, f"recall failed, {reason}")
