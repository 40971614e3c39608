"""List of unreadable consume queues, kept until a start has rebuilt them.

A queue is a projection of the log. A start removes the files of the listed queues and rebuilds all
queues from the log.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from pathlib import Path

logger = logging.getLogger(__name__)


class LostQueues:
    """`config/unreadableQueues`: one queue per line.

    Attributes:
        names: Names of the queues, as `topic/queueId`.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.names: set[str] = set()

    def load(self) -> None:
        """Read the file."""
        with suppress(FileNotFoundError):
            self.names |= set(self._path.read_text().splitlines())

    def add(self, path: str) -> None:
        """Add the queue of a file that cannot be read."""
        directory = Path(path).parent
        name = f"{directory.parent.name}/{directory.name}"
        if name in self.names:
            return
        self.names.add(name)
        try:
            with self._path.open("a") as file:
                file.write(f"{name}\n")
        except OSError as error:  # the next start may find the sector itself
            logger.warning("%s cannot be written: %s", self._path, error)

    def clear(self) -> None:
        """Remove all names and the file: the queues were rebuilt."""
        self.names.clear()
        self._path.unlink(missing_ok=True)
