"""Unsupported consumer requests: answered with code 3 and logged.

A push consumer with `setClientRebalance(false)` starts all the same and then receives nothing,
whatever the answer is. So the broker logs a warning as well, at most once a minute for each code.
PopMessageProcessor, QueryAssignmentProcessor
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import Final

from delivery.plugin import Request, RequestHandler, Response
from duemq.net.codes import ResponseCode
from message_store.clock import Clock

log = logging.getLogger(__name__)
WARN_MS: Final = 60_000
POP: Final = "this request of POP consumption"
ASSIGNMENT: Final = "queue assignment by the broker (setClientRebalance(false))"
UNSERVED: Final = {
    400: ("QUERY_ASSIGNMENT", ASSIGNMENT),
    401: ("SET_MESSAGE_REQUEST_MODE", POP),
    200_057: ("POP_ROLLBACK", POP),
}
HINT: Final = "use a push or pull consumer of a remoting client with client-side rebalance"


class UnservedProcessor:
    """Handler of the codes in UNSERVED.

    Attributes:
        counts: Requests so far, by code.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._warned_ms: dict[int, int] = {}
        self.counts: Counter[int] = Counter()

    def handlers(self) -> dict[int, RequestHandler]:
        return dict.fromkeys(UNSERVED, self.refuse)

    async def refuse(self, request: Request) -> Response:
        """Answer 3 with what is not served and what to use."""
        name, what = UNSERVED[request.code]
        self.counts[request.code] += 1
        remark = f"request {request.code} ({name}) is not supported: {what} is not served; {HINT}"
        now_ms = self._clock.now_ms()
        if abs(now_ms - self._warned_ms.get(request.code, -WARN_MS)) >= WARN_MS:
            self._warned_ms[request.code] = now_ms
            log.warning(
                "%r receives nothing here (%d such requests so far): %s",
                request.peer,
                self.counts[request.code],
                remark,
            )
        return Response(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)
