"""Key-value tables of the name server, by namespace, in one file.

Source: KVConfigManager
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from duemq.registry.config_file import ConfigFile
from duemq_common.codes import ResponseCode
from duemq_common.errors import RequestError

ORDER_NAMESPACE = "ORDER_TOPIC_CONFIG"
ENTRIES_MAX = 100_000
TEXT_CHARS_MAX = 65_536
TOTAL_CHARS_MAX = 4 << 20  # each change rewrites the file

Tables = dict[str, dict[str, str]]


class KVConfig:
    """Text values by namespace and key. `file` None: kept in memory only."""

    def __init__(self, file: ConfigFile | None = None) -> None:
        self._file = file
        self._tables: Tables = {}
        self._changing = asyncio.Lock()

    def load(self) -> None:
        """Read the file, if there is one.

        Raises:
            CorruptStore: The file exists but neither it nor its backup is valid.
        """
        tables = self._file.load(_decode) if self._file else None
        self._tables = tables or {}

    def get(self, namespace: str, key: str) -> str | None:
        """Return a value, or None."""
        return self._tables.get(namespace, {}).get(key)

    def table(self, namespace: str) -> dict[str, str] | None:
        """Return a copy of a namespace's table; None if it has no entry."""
        table = self._tables.get(namespace)
        return dict(sorted(table.items())) if table else None

    async def put(self, namespace: str, key: str, value: str) -> None:
        """Set a value.

        Raises:
            RequestError: The text is too long, the table is full, or the file cannot be written.
        """
        if max(map(len, (namespace, key, value))) > TEXT_CHARS_MAX:
            text = f"namespace, key or value has more than {TEXT_CHARS_MAX} characters"
            raise RequestError(ResponseCode.SYSTEM_ERROR, text)
        async with self._changing:
            if self.get(namespace, key) is None and self._count() >= ENTRIES_MAX:
                raise RequestError(ResponseCode.SYSTEM_ERROR, f"there are {ENTRIES_MAX} entries")
            if self._chars() + len(namespace) + len(key) + len(value) > TOTAL_CHARS_MAX:
                text = f"more than {TOTAL_CHARS_MAX} characters in all; delete some entries"
                raise RequestError(ResponseCode.SYSTEM_ERROR, text)
            table = self._tables.get(namespace, {}) | {key: value}
            await self._save(self._tables | {namespace: table})

    async def delete(self, namespace: str, key: str) -> None:
        """Remove a value; do nothing if it is absent.

        Raises:
            RequestError: The file cannot be written.
        """
        async with self._changing:
            if self.get(namespace, key) is None:
                return
            table = {k: v for k, v in self._tables[namespace].items() if k != key}
            await self._save(self._tables | {namespace: table})

    def _chars(self) -> int:
        return sum(
            len(namespace) + len(key) + len(value)
            for namespace, table in self._tables.items()
            for key, value in table.items()
        )

    def _count(self) -> int:
        return sum(map(len, self._tables.values()))

    async def _save(self, tables: Tables) -> None:
        if self._file is not None:
            try:
                await self._file.save({"configTable": tables})
            except OSError as error:
                text = f"{self._file.path} cannot be written: {error.strerror or error}"
                raise RequestError(ResponseCode.SYSTEM_ERROR, text) from error
        self._tables = tables


def _decode(data: Mapping[str, object]) -> Tables:
    tables = data.get("configTable") or {}
    if not isinstance(tables, Mapping) or not all(isinstance(t, Mapping) for t in tables.values()):
        raise ValueError("configTable is not an object of objects")
    return {
        str(namespace): {str(key): str(value) for key, value in table.items()}
        for namespace, table in tables.items()
    }
