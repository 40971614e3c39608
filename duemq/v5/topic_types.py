"""Message types that a topic accepts (attribute `message.type`).

Source: TopicMessageTypeValidator
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from duemq.v5.protocol import definition as v2
from duemq.v5.status import V5Error

ATTRIBUTE: Final = "message.type"
MIXED: Final = (v2.NORMAL, v2.FIFO, v2.DELAY, v2.TRANSACTION)
_TYPES: Final[Mapping[str, tuple[v2.MessageType, ...]]] = {
    "NORMAL": (v2.NORMAL,),
    "FIFO": (v2.FIFO,),
    "DELAY": (v2.DELAY,),
    "TRANSACTION": (v2.TRANSACTION,),
    "MIXED": MIXED,
}


def accepted_types(attributes: Mapping[str, str]) -> tuple[v2.MessageType, ...]:
    """Return the message types that a topic accepts; the default is NORMAL."""
    name = attributes.get(ATTRIBUTE) or attributes.get("+" + ATTRIBUTE) or "NORMAL"
    return _TYPES.get(name.upper(), (v2.MESSAGE_TYPE_UNSPECIFIED,))


def check_type(accepted: tuple[v2.MessageType, ...], message_type: v2.MessageType) -> None:
    """Check that a topic accepts a message type.

    Raises:
        V5Error: The topic does not accept the type.
    """
    if message_type not in accepted:
        expected = "MIXED" if len(accepted) > 1 else v2.MessageType.Name(accepted[0])
        raise V5Error(
            v2.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
            f"TopicMessageType validate failed, the expected type is {expected}, but actual type "
            f"is {v2.MessageType.Name(message_type)}: set the topic's attribute {ATTRIBUTE}",
        )
