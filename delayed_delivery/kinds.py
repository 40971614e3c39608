"""Kinds of messages in a batch (`PutBatch.kinds`), each a bit: which put hooks it concerns.

The kernel that parses sends has these bits compiled in, so this module imports nothing that changes
more often.
"""

from __future__ import annotations

from typing import Final

LEVEL_KIND: Final = 1  # with a level
TIMER_KIND: Final = 2  # with a timer property
SCHEDULE_KIND: Final = 4  # with a property of recurring schedules
