"""Errors of the client.

DueMQError
└── ClientError         a call of the client failed
    ├── NotSent         a message was not stored, or it is not known whether it was
    ├── NoRoute         no broker has the topic
    │   └── NoBroker    no broker is registered
    ├── Refused         a server refused a request; `code` is Apache's response code
    │   └── NoNameServer  the server is not a name server
    ├── Unreachable     no server responded
    ├── Unsupported     the broker does not have the feature
    └── Closed          the client is closed
"""

from __future__ import annotations

from duemq_common.errors import DueMQError, RequestError


class ClientError(DueMQError):
    """A call of the client failed."""


class NotSent(ClientError):
    """A message was not stored, or no response says whether it was; `__cause__` is the reason.

    Attributes:
        message_id: Unique id of the message; a later send of the same message has it, too.
    """

    def __init__(self, text: str, message_id: str) -> None:
        super().__init__(text)
        self.message_id = message_id


class NoRoute(ClientError):
    """No broker has the topic."""


class NoBroker(NoRoute):
    """The name server has no registered broker."""


class Refused(ClientError, RequestError):
    """A server refused a request; `code` is Apache's response code."""

    def __init__(self, code: int, remark: str, address: str = "") -> None:
        RequestError.__init__(self, code, remark)
        self.address = address


class NoNameServer(Refused):
    """The server is not a name server."""


class Unreachable(ClientError, ConnectionError):
    """No server responded: it cannot be reached, closed the connection, or took too long."""


class Unsupported(ClientError):
    """The broker does not have the feature."""


class Closed(ClientError):
    """The client is closed."""
