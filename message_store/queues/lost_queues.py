"""List of unreadable consume queues, kept until a start has written them again.

A queue is a projection of the log: a start that finds its name here removes its files, misses its
units, and writes every queue again from the log.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from pathlib import Path

logger = logging.getLogger(__name__)


class LostQueues:
    """`config/unreadableQueues`: a directory below the queues' on each line.

    Attributes:
        names: of the queues, as `topic/queueId`.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.names: set[str] = set()

    def load(self) -> None:
        """Read the note."""
        with suppress(FileNotFoundError):
            self.names |= set(self._path.read_text().splitlines())

    def add(self, file: str) -> None:
        """Note the queue of a file that cannot be read."""
        path = Path(file)
        name = f"{path.parent.parent.name}/{path.parent.name}"
        if name in self.names:
            return
        self.names.add(name)
        try:
            with self._path.open("a") as note:
                note.write(f"{name}\n")
        except OSError as error:  # the next start may meet the sector itself
            logger.warning("%s cannot be written: %s", self._path, error)

    def clear(self) -> None:
        """Forget all: their units were written again."""
        self.names.clear()
        self._path.unlink(missing_ok=True)
