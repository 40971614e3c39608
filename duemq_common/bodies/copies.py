"""Bodies of the request for copies of messages that were sent again (9022); MessagePack.

The header field `topic` has the topic of the copies.
"""

from __future__ import annotations

from typing import Final

import msgspec

KEYS_MAX: Final = 1_000  # messages in one request
COPIES_MAX: Final = 65_536  # records that one request examines
NAME_CHARS_MAX: Final = 255


class CopiesRequest(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """Body of FIND_COPIES.

    Attributes:
        mark: Property that only copies have.
        keys: Unique keys of messages, UTF-8.
    """

    mark: str
    keys: list[bytes]


class CopiesResponse(msgspec.Struct, array_like=True):
    """Body of a response to FIND_COPIES.

    Attributes:
        marks: Values of the property in the records of each message; none: it has no copy.
    """

    marks: list[list[str]]
