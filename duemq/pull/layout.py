"""Units of consume queues as pulls and pops read them."""

from __future__ import annotations

from typing import Final

BLANK_UNIT_SIZE: Final = 0x7FFF_FFFF  # size in units before the first message of a queue
