"""Requests that only read, and may take long: each ends when its connection closes.

A search of a store can take minutes. Its client gives up earlier, and repeats it on a new
connection: without an end, the searches of all attempts would run at the same time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from duemq.net.dispatcher import Handler
from duemq_common.codes import ResponseCode
from duemq_common.errors import RequestError
from duemq_common.request import Peer, Request, RequestHandler, Response


class ConnectedReads:
    """Tasks of the requests in progress, by connection. Belongs to the event loop's thread."""

    def __init__(self) -> None:
        self._tasks: dict[Peer, set[asyncio.Task[object]]] = {}

    def handler(self, handler: Handler) -> RequestHandler:
        """Return a handler whose task is cancelled when the connection of its request closes."""

        async def read(request: Request) -> Response | None:
            with self._reading(request.peer):
                result = handler(request)
                return result if isinstance(result, Response) else await result

        return read

    @contextmanager
    def _reading(self, peer: Peer | None) -> Iterator[None]:
        """Cancel the current task if the connection closes while the block is active.

        Raises:
            RequestError: It is closed already.
        """
        if peer is None:
            yield
            return
        if peer.closed:
            raise RequestError(ResponseCode.SYSTEM_ERROR, "the connection is closed")
        tasks = self._tasks.get(peer)
        if tasks is None:
            tasks = self._tasks[peer] = set()
            peer.on_close(self._closed)
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            yield
        finally:
            tasks.discard(task)

    def _closed(self, peer: Peer) -> None:
        for task in self._tasks.pop(peer, ()):
            task.cancel()
