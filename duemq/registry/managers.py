"""Identity of the broker, permissions of topics, and the function that stores messages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from msgspec import Struct

from message_store.log.batch import PutBatch
from message_store.replication.acknowledgement import Missing

Putter = Callable[[PutBatch], Awaitable[Missing | None]]
"""Runs the put hooks, appends, and waits for confirmation unless WAIT=false.

Results are in the rows. Returns the missing confirmation after a timeout, else None."""


class Identity(Struct, frozen=True):
    """Names of this broker; `host` is (address bytes, port) in store hosts and offset ids."""

    broker_name: str
    cluster_name: str
    broker_id: int
    host: tuple[bytes, int]
    perm: int = 6
