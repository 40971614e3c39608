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
    GRANT_TOPICS,
    SENDER,
    host_column,
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
class Sender:
    """One connection, for the kernel.

    Attributes:
        record: (1,) SENDER: its end of the connection, and what it may send.
        access_key: Account of the grant; empty: none.
        version: Version of the accounts that the grant is true for.
    """

    record: Rows
    access_key: str = ""
    version: int = 0


class Grants:
    """Senders of all connections, and their grants.

    Args:
        access: Checks sends; None: every peer may send to every open topic.
    """

    def __init__(self, access: SendAccess | None, topics: TopicTable) -> None:
        self._access, self._topics = access, topics

    def sender(self, born_host: tuple[bytes, int]) -> Sender:
        """Return the sender of a connection, without a grant."""
        record = np.zeros(1, SENDER)
        record["born"] = host_column(*born_host)
        sender = Sender(record)
        self._withdraw(sender)
        return sender

    def record(self, sender: Sender) -> Rows:
        """Return the record for the kernel; a void grant allows nothing."""
        if self._access is not None and sender.version != self._access.version:
            self._withdraw(sender)
        return sender.record

    def extend(self, sender: Sender, request: Request) -> None:
        """Extend the grant after a send that Python has accepted."""
        access, name = self._access, request.fields.get(ACCESS_KEY_FIELD)
        if access is None or not name or (secret := access.secret(name)) is None:
            return
        if sender.version != access.version or sender.access_key != name:
            self._withdraw(sender)
            key = np.frombuffer(name.encode("utf-8", "replace"), np.uint8)
            if key.size > ACCESS_KEY_BYTES_MAX:
                return
            grant = sender.record["grant"]
            grant["key_len"], grant["key"][0, : key.size] = key.size, key
            grant["inner"][0], grant["outer"][0] = key_states(secret)
            sender.access_key = name
        long = request.code == RequestCode.SEND_MESSAGE
        topic_index = self._topics.find(request.fields.get("topic" if long else "b", ""))
        if topic_index >= 0:
            place = topic_index & (GRANT_TOPICS - 1)
            sender.record["grant"]["topics"][0, place] = topic_index

    def _withdraw(self, sender: Sender) -> None:
        grant = sender.record["grant"]
        grant["check"], grant["key_len"], grant["topics"] = self._access is not None, NO_ACCOUNT, -1
        sender.access_key = ""
        sender.version = self._access.version if self._access is not None else 0


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
