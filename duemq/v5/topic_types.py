"""Message types that a topic accepts (attribute `message.type`).

Source: TopicMessageTypeValidator
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from duemq.registry.topic_config import MESSAGE_TYPE, message_type
from duemq.v5.protocol import definition as v2
from duemq.v5.status import V5Error

MIXED: Final = (v2.NORMAL, v2.FIFO, v2.DELAY, v2.TRANSACTION)
"""Types that the route of a topic with all types names; it accepts priorities, too."""
_TYPES: Final[Mapping[str, tuple[v2.MessageType, ...]]] = {
    "NORMAL": (v2.NORMAL,),
    "FIFO": (v2.FIFO,),
    "DELAY": (v2.DELAY,),
    "TRANSACTION": (v2.TRANSACTION,),
    "MIXED": MIXED,
    "PRIORITY": (v2.PRIORITY,),
}


def accepted_types(attributes: Mapping[str, str]) -> tuple[v2.MessageType, ...]:
    """Return the message types that a topic accepts; the default is NORMAL."""
    return _TYPES.get(message_type(attributes), (v2.MESSAGE_TYPE_UNSPECIFIED,))


def check_type(attributes: Mapping[str, str], *types: v2.MessageType) -> None:
    """Check that a topic accepts a message.

    Args:
        types: Types of the message; a delayed message with a priority has two.
    Raises:
        V5Error: The topic accepts none of the types.
    """
    accepted = accepted_types(attributes)
    if accepted is not MIXED and not set(types) & set(accepted):
        raise V5Error(
            v2.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
            "TopicMessageType validate failed, the expected type is "
            f"{v2.MessageType.Name(accepted[0])}, but actual type is "
            f"{v2.MessageType.Name(types[0])}: set the topic's attribute {MESSAGE_TYPE}",
        )
