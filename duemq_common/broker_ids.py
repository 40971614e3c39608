"""Ids of the brokers of a group. Source: MixAll"""

from __future__ import annotations

from typing import Final

MASTER_ID: Final = 0
BROKER_ID_MAX: Final = (1 << 31) - 1
