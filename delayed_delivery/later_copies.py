"""Room in the property text of a message for the properties that its later copies add.

    text of the client | reserve of LATER_COPY_BYTES                                  | 32,767
                       | timer | retry (send-back) | retry (POP) | redirect or handle |

The length of a record's properties is a signed 16-bit number. A copy that exceeds it cannot be
stored, so a send without room for all later copies is refused: docs/decisions/0055. Records
that an Apache broker or an earlier version stored may lack the room. The component that cannot
store the copy of such a record settles it alone.
"""

from __future__ import annotations

from typing import Final

from duemq_common.text import GROUP_BYTES_MAX, TOPIC_BYTES_MAX
from message_store.log.properties import PROPERTIES_BYTES_MAX

NUMBER_BYTES, TIME_BYTES, OFFSET_BYTES, QUEUE_BYTES = 10, 13, 19, 9
OFFSET_MESSAGE_ID_BYTES: Final = 56  # with an IPv6 address
BROKER_NAME_BYTES: Final = 127  # with a longer name, a message may be refused later


def entry_bytes(name: str, value_bytes: int) -> int:
    """Return the size of an entry in a property text."""
    return len(name) + 1 + value_bytes + 1


def handle_bytes_max(broker_name_bytes: int) -> int:
    """Return the maximum size of a receipt handle.

    It has two offsets, two times, revive queue, retry flag, broker name, queue and seven blanks.
    """
    return 2 * OFFSET_BYTES + 2 * TIME_BYTES + 3 + 1 + broker_name_bytes + QUEUE_BYTES + 7


# Properties that the record of a timer has, and that its delivery keeps.
TIMER_BYTES: Final = (
    entry_bytes("TIMER_ENQUEUE_MS", OFFSET_BYTES)
    + entry_bytes("TIMER_DEQUEUE_MS", TIME_BYTES)
    + entry_bytes("TIMER_ROLL_TIMES", NUMBER_BYTES)
    + entry_bytes("DUEMQ_DUE_MS", TIME_BYTES)
)
# Properties that a consumer's send-back adds (code 36). The message keeps them.
SEND_BACK_BYTES: Final = (
    entry_bytes("RETRY_TOPIC", TOPIC_BYTES_MAX)
    + entry_bytes("ORIGIN_MESSAGE_ID", OFFSET_MESSAGE_ID_BYTES)
    + entry_bytes("WAIT", len("false"))
    + entry_bytes("DELAY", NUMBER_BYTES)
)
POP_BYTES: Final = entry_bytes("1ST_POP_TIME", TIME_BYTES)
# Properties that one copy has and the next one has not: a redirect, or a receipt handle.
REDIRECT_BYTES: Final = entry_bytes("REAL_TOPIC", GROUP_BYTES_MAX) + entry_bytes(
    "REAL_QID", QUEUE_BYTES
)
TRANSIENT_BYTES: Final = max(
    REDIRECT_BYTES, entry_bytes("POP_CK", handle_bytes_max(BROKER_NAME_BYTES))
)
SEPARATOR_BYTES: Final = 1  # after a text without a trailing one
RETRY_COPY_BYTES: Final = SEPARATOR_BYTES + POP_BYTES + TRANSIENT_BYTES
"""Reserve of a message in a retry topic or dead letter topic."""
LATER_COPY_BYTES: Final = TIMER_BYTES + SEND_BACK_BYTES + RETRY_COPY_BYTES
"""Reserve of a message from a client."""
# Properties that check-backs add to a half message, which its commit keeps.
CHECK_BACK_BYTES: Final = entry_bytes("TRANSACTION_CHECK_TIMES", NUMBER_BYTES)

SENT_BYTES_MAX: Final = PROPERTIES_BYTES_MAX - LATER_COPY_BYTES
"""Maximum bytes of the property text of a message from a client, with the broker's properties."""
SENT_RETRY_BYTES_MAX: Final = PROPERTIES_BYTES_MAX - RETRY_COPY_BYTES
"""The same for a message that a client sends to a retry topic or dead letter topic."""
HALF_BYTES_MAX: Final = SENT_BYTES_MAX - CHECK_BACK_BYTES
"""The same for a half message, with its real topic and queue."""


def fault_of(properties_bytes: int, bytes_max: int) -> str:
    """Return why a property text is refused; empty if it is accepted.

    Args:
        properties_bytes: Size of the text.
        bytes_max: Its limit: one of the constants of this module.
    """
    if properties_bytes <= bytes_max:
        return ""
    reserve = PROPERTIES_BYTES_MAX - bytes_max
    return (
        f"the message is illegal: its properties have {properties_bytes} bytes; the limit is "
        f"{bytes_max}: {PROPERTIES_BYTES_MAX} less {reserve} for the properties of retries"
    )
