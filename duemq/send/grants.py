"""Grants: the account and topics whose sends the kernel accepts on a connection.

Python decodes and checks the first send of an account to a topic. If the send is permitted, the
connection gets a grant with the account, key states of its secret, and the topic. The kernel then
accepts sends with this account, a granted topic and a valid signature; Python checks all other
sends. A change of the accounts revokes every grant.

A grant has one account and at most 64 topics, so its memory is bounded.
"""

from __future__ import annotations

import hashlib
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from duemq.net.dispatcher import AccessCheck
from duemq.send.kernels.sha1 import BLOCK_BYTES, SCHEDULE_WORDS, START, add_block
from duemq.send.layout import (
    ACCESS_KEY_BYTES_MAX,
    ACCESS_KEY_FIELD,
    GRANT_TOPICS,
    SENDER,
    host_column,
)
from duemq_common.codes import RequestCode
from duemq_common.request import Request
from message_store.layout import Rows
from message_store.queues.topic_table import TopicTable

INNER, OUTER = 0x36, 0x5C
NO_ACCOUNT: Final = -1


class SendAccess(AccessCheck, Protocol):
    """Access check for sends, with the secrets that sign them."""

    @property
    def version(self) -> int:
        """Version number; changes with every change of accounts or permissions."""
        ...

    def secret(self, access_key: str) -> str | None:
        """Return the signing secret of an account; None if it has none."""
        ...


class Sender(Struct):
    """Kernel record of one connection.

    Attributes:
        record: (1,) SENDER: address of the peer, and grant.
        access_key: Account of the grant; empty: no grant.
        version: `SendAccess.version` at the time of the grant.
    """

    record: Rows
    access_key: str = ""
    version: int = 0


class Grants:
    """Grants of all connections.

    Args:
        access: Access check for sends; None: every peer may send to every open topic.
    """

    def __init__(self, access: SendAccess | None, topics: TopicTable) -> None:
        self._access, self._topics = access, topics

    def sender(self, born_host: tuple[bytes, int]) -> Sender:
        """Return the sender of a connection, without a grant."""
        record = np.zeros(1, SENDER)
        record["born"] = host_column(*born_host)
        sender = Sender(record)
        self._revoke(sender)
        return sender

    def record(self, sender: Sender) -> Rows:
        """Return (1,) SENDER for the kernel; revoke the grant if the accounts have changed."""
        if self._access is not None and sender.version != self._access.version:
            self._revoke(sender)
        return sender.record

    def extend(self, sender: Sender, request: Request) -> None:
        """Add account and topic of a send that Python accepted to the grant.

        A send of another account replaces the grant.
        """
        access, name = self._access, request.fields.get(ACCESS_KEY_FIELD)
        if access is None or not name or (secret := access.secret(name)) is None:
            return
        if sender.version != access.version or sender.access_key != name:
            self._revoke(sender)
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
            position = topic_index & (GRANT_TOPICS - 1)
            sender.record["grant"]["topics"][0, position] = topic_index

    def _revoke(self, sender: Sender) -> None:
        grant = sender.record["grant"]
        grant["check"], grant["key_len"], grant["topics"] = self._access is not None, NO_ACCOUNT, -1
        sender.access_key = ""
        sender.version = self._access.version if self._access is not None else 0


def key_states(secret: str) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint32]]:
    """Return the (5,) SHA-1 states after HMAC's inner and outer key block."""
    data = secret.encode("utf-8", "replace")
    if len(data) > BLOCK_BYTES:
        data = hashlib.sha1(data, usedforsecurity=False).digest()
    key = np.frombuffer(data.ljust(BLOCK_BYTES, b"\0"), np.uint8)
    return _state_after(key ^ np.uint8(INNER)), _state_after(key ^ np.uint8(OUTER))


def _state_after(block: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint32]:
    state = np.array(START, np.uint32)
    add_block(state, np.zeros(SCHEDULE_WORDS, np.uint32), block, 0)
    return state
