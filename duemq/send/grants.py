"""Grants: what the kernel may take without asking Python, account by connection.

A send of an account is decoded and checked in Python first. If it passes, the connection gets a
grant: the account, its secret, and the topic. The kernel takes further sends that name the account
and the topic and carry a right signature; all others go to Python again. A change of the accounts
makes every grant void.

A grant holds one account and at most 64 topics; memory does not grow with what a client sends.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from delivery.plugin import Request
from duemq.net.codes import RequestCode
from duemq.net.dispatcher import AccessCheck
from duemq.send.kernels.sha1 import BLOCK_BYTES, SCHEDULE_WORDS, START, add_block
from duemq.send.layout import (
    ACCESS_KEY_BYTES_MAX,
    ACCESS_KEY_FIELD,
    GRANT,
    GRANT_TOPICS,
)
from message_store.layout import Rows
from message_store.queues.topic_table import TopicTable

INNER, OUTER = 0x36, 0x5C
NO_ACCOUNT: Final = -1


class SendAccess(AccessCheck, Protocol):
    """Decides about sends, and names the secrets that sign them."""

    @property
    def version(self) -> int:
        """A number that changes with every change of what is allowed."""
        ...

    def secret(self, access_key: str) -> str | None:
        """Return the secret that signs for an account, None if it has none."""
        ...


@dataclass(slots=True)
class Grant:
    """What one connection may send: (1,) GRANT, and the version that it is true for."""

    record: Rows
    access_key: str
    version: int


class Grants:
    """Grants of all connections.

    Args:
        access: Checks sends; None: every peer may send to every open topic.
    """

    def __init__(self, access: SendAccess | None, topics: TopicTable) -> None:
        self._access, self._topics = access, topics
        self._none = new_record(check=access is not None)

    def record(self, grant: object) -> Rows:
        """Return the record for the kernel; a void grant allows nothing."""
        if not isinstance(grant, Grant) or self._access is None:
            return self._none
        return grant.record if grant.version == self._access.version else self._none

    def extended(self, old: object, request: Request) -> Grant | None:
        """Return the grant after a send that Python has accepted."""
        access, grant = self._access, old if isinstance(old, Grant) else None
        name = request.fields.get(ACCESS_KEY_FIELD)
        if access is None or not name or (secret := access.secret(name)) is None:
            return grant
        if grant is None or grant.version != access.version or grant.access_key != name:
            if len(name.encode("utf-8", "replace")) > ACCESS_KEY_BYTES_MAX:
                return grant
            grant = Grant(new_record(check=True, name=name, secret=secret), name, access.version)
        long = request.code == RequestCode.SEND_MESSAGE
        topic_index = self._topics.find(request.fields.get("topic" if long else "b", ""))
        if topic_index >= 0:
            grant.record["topics"][0, topic_index & (GRANT_TOPICS - 1)] = topic_index
        return grant


def new_record(*, check: bool, name: str = "", secret: str = "") -> Rows:
    """Return (1,) GRANT without topics."""
    record = np.zeros(1, GRANT)
    record["check"], record["key_len"], record["topics"] = check, NO_ACCOUNT, -1
    if name:
        key = np.frombuffer(name.encode("utf-8", "replace"), np.uint8)
        record["key_len"], record["key"][0, : key.size] = key.size, key
        record["inner"][0], record["outer"][0] = key_states(secret)
    return record


def key_states(secret: str) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint32]]:
    """Return SHA-1's states after the inner and the outer block of HMAC."""
    data = secret.encode("utf-8", "replace")
    if len(data) > BLOCK_BYTES:
        data = hashlib.sha1(data, usedforsecurity=False).digest()
    key = np.frombuffer(data.ljust(BLOCK_BYTES, b"\0"), np.uint8)
    return _after(key ^ np.uint8(INNER)), _after(key ^ np.uint8(OUTER))


def _after(block: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint32]:
    state = np.array(START, np.uint32)
    add_block(state, np.zeros(SCHEDULE_WORDS, np.uint32), block, 0)
    return state
