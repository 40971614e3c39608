"""Version of a table, compared by brokers, slaves and name servers. DataVersion"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

COUNTER_MAX: Final = 2**63 - 1


class DataVersion(Struct, frozen=True):
    """Version of a table; tables with equal versions are considered equal.

    Attributes:
        counter: Number of changes.
        timestamp_ms: Time of the last change in ms since the epoch.
        state_version: Epoch of the master; 0 without a controller.
    """

    counter: int = 0
    timestamp_ms: int = 0
    state_version: int = 0

    def next(self, now_ms: int) -> DataVersion:
        """Return the version after another change."""
        counter = self.counter + 1 if self.counter < COUNTER_MAX else 1
        return DataVersion(counter, now_ms, self.state_version)

    def to_json(self) -> dict[str, int]:
        """Return the object as 5.3.3 writes it, names sorted."""
        return {
            "counter": self.counter,
            "stateVersion": self.state_version,
            "timestamp": self.timestamp_ms,
        }

    @classmethod
    def from_json(cls, data: object) -> DataVersion:
        """Decode the JSON form of any version; 4.9.x has no state version.

        Raises:
            ValueError: A member is not a number.
        """
        if data is None:
            return cls()
        if not isinstance(data, Mapping):
            raise ValueError(f"dataVersion is {type(data).__name__}, not an object")
        return cls(
            integer(data, "counter", 0),
            integer(data, "timestamp", 0),
            integer(data, "stateVersion", 0),
        )


def integer(data: Mapping[str, object], name: str, default: int) -> int:
    """Return a 64-bit integer member, given as number or text; `default` if absent or null.

    Raises:
        ValueError: The value is not a 64-bit integer.
    """
    value = data.get(name, default)
    if value is None:
        return default
    if isinstance(value, str) and len(value) <= 20:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{name} is {value!r}, not a number")
    if not -(1 << 63) <= value < 1 << 63:
        raise ValueError(f"{name}={value} does not fit 64 bits")
    return value


def boolean(data: Mapping[str, object], name: str, default: bool) -> bool:
    """Return a boolean member, given as boolean or text; `default` if absent or null.

    Raises:
        ValueError: The value is not a boolean.
    """
    value = data.get(name, default)
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    if value is None:
        return default
    if not isinstance(value, bool):
        raise ValueError(f"{name} is {value!r}, not true or false")
    return value
