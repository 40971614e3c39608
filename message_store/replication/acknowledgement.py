"""Acknowledgement by replicas: the log offset that enough of them have, and waits for it.

    append --> disk (SYNC_FLUSH) --> replicas (SYNC_MASTER) --> confirmed: acknowledged, readable

There is one offset for all messages, which never decreases. The component that tracks the replicas
advances it; a batch of messages waits for it once. Source: GroupTransferService
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from enum import Enum

from duemq_common.codes import ResponseCode
from duemq_common.errors import RequestError


class Missing(Enum):
    """Condition that prevents the confirmation of a message in the log.

    Attributes:
        code: Apache's response code.
        text: Second part of a remark, after the outcome of the request.
    """

    DISK = ResponseCode.FLUSH_DISK_TIMEOUT, "the disk did not sync it in time (syncFlushTimeout)"
    NO_REPLICA = (
        ResponseCode.SLAVE_NOT_AVAILABLE,
        "not enough replicas are in sync (inSyncReplicas)",
    )
    REPLICAS = (
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
        "replicas did not acknowledge it in time (slaveTimeout)",
    )

    def __init__(self, code: int, text: str) -> None:
        self.code, self.text = code, text


class Replicated:
    """Log offset up to which enough replicas have the log.

    Attributes:
        required: Whether messages need replicas to be confirmed.
        offset: The log offset; it never decreases.
        is_possible: Whether enough replicas are in sync to advance the offset.
        refusal: Reason why messages are not appended at all, or empty.
        is_given_up: Whether no more messages are confirmed, because the broker is no longer master.
        timeout_ms: Maximum duration of one wait, in ms.
        is_copied: Returns whether replicas copy the log, or are configured to.
    """

    def __init__(self) -> None:
        self.required = self.is_possible = self.is_given_up = False
        self.offset, self.timeout_ms = 0, 0
        self.refusal = ""
        self.is_copied: Callable[[], bool] = lambda: False
        self._waits: dict[int, tuple[int, Callable[[], None]]] = {}  # in the order of the log
        self._last = 0
        self._waiters: dict[int, asyncio.Event] = {}

    def __len__(self) -> int:
        """Return the number of waits in progress."""
        return len(self._waits)

    def require(self, offset: int) -> None:
        """Require replicas from now on.

        Args:
            offset: Log offset up to which messages are already confirmed.
        """
        self.required, self.offset = True, offset

    def advance(self, offset: int) -> None:
        """Confirm the log up to `offset`; resume the waits for it."""
        if offset <= self.offset or self.is_given_up:
            return
        self.offset = offset
        reached = []
        for number, (end, _) in self._waits.items():
            if end > offset:
                break
            reached.append(number)
        for call in [self._waits.pop(number)[1] for number in reached]:
            call()

    def give_up(self) -> None:
        """Confirm no more messages; all waits end with REPLICAS at once."""
        self.is_given_up = True
        for woken in self._waiters.values():
            woken.set()

    def when_reached(self, end: int, call: Callable[[], None]) -> None:
        """Call `call` once the offset has reached `end`."""
        if end <= self.offset:
            call()
        else:
            self._add(end, call)

    def _add(self, end: int, call: Callable[[], None]) -> int:
        self._last += 1
        self._waits[self._last] = end, call
        return self._last

    async def wait(self, end: int) -> Missing | None:
        """Wait until the offset has reached `end`; return what was missing after `timeout_ms`."""
        if end <= self.offset:
            return None
        if self.is_given_up:
            return Missing.REPLICAS
        if not self.is_possible:
            return Missing.NO_REPLICA
        woken = asyncio.Event()
        number = self._add(end, woken.set)
        self._waiters[number] = woken
        try:
            # A late loop reaches the offset and the timeout in one turn: the offset decides.
            with suppress(TimeoutError):
                async with asyncio.timeout(self.timeout_ms / 1_000):
                    await woken.wait()
        finally:
            self._waits.pop(number, None)
            del self._waiters[number]
        return None if end <= self.offset else Missing.REPLICAS


def not_confirmed(statement: str, missing: Missing) -> RequestError:
    """Return the error of a request whose records are stored but not confirmed.

    Args:
        statement: Clause that states what was stored.
    """
    return RequestError(missing.code, f"{statement}, but {missing.text}: repeat the request")
