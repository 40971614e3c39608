"""Truncations of a log, after which the same log offsets may have other bytes.

    log     0 ......... X ........ end            truncate to X, then the log grows again
    later   0 ......... X' x' x' x' x' x' ...     other records at the same offsets

A checkpoint of derived data contains a log offset L and is valid while the log before L is
unchanged. `L <= end` does not show this: after a truncation to X < L the log reaches L again with
other records. Therefore every truncation gets a number, the *generation* of the log after it. A
checkpoint records L and the generation, and is valid if

    L <= floor(generation)      the lowest X of all truncations since that generation

The file is written before the log is truncated. If a truncation is `pending`, the next start
completes it. If a start finds a shorter or a different log, it also records a truncation.
"""

from __future__ import annotations

import logging
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Self

from msgspec import Struct
from msgspec.structs import replace

from duemq_common.errors import CorruptStore
from duemq_common.json_dialect import dumps, load_config, write_config

logger = logging.getLogger(__name__)
FILE_NAME: Final = "duemq.truncations.json"
NO_FLOOR: Final = (1 << 63) - 1
"""Floor of a generation after which nothing was truncated."""
STEPS_MAX: Final = 1_000
AFTER_LOSS: Final = 1 << 62  # generation of a log whose file of truncations is damaged


class _State(Struct, frozen=True):
    """Content of the file.

    Attributes:
        steps: (generation, log offset) of the truncations that define a floor, both ascending.
        followed: Generation up to which files of other formats follow the log, by file name.
    """

    generation: int = 0
    pending: int | None = None
    steps: tuple[tuple[int, int], ...] = ()
    followed: tuple[tuple[str, int], ...] = ()


class Truncations:
    """`config/duemq.truncations.json` of one store."""

    def __init__(self, path: Path, state: _State) -> None:
        self._path, self._state = path, state

    @classmethod
    def load(cls, root: Path) -> Self:
        """Read the file of the store at `root`; a damaged file invalidates every checkpoint."""
        path = root / "config" / FILE_NAME
        try:
            state = load_config(path, _decode) or _State()
        except CorruptStore as error:
            logger.error("%s All data derived from the log are rebuilt instead.", error)
            state = _State(AFTER_LOSS, None, ((AFTER_LOSS, 0),))
        return cls(path, state)

    @property
    def generation(self) -> int:
        """Number of the last truncation, 0 without one. A checkpoint records it."""
        return self._state.generation

    @property
    def pending(self) -> int | None:
        """Log offset of a truncation that is not completed, None without one."""
        return self._state.pending

    def floor(self, generation: int) -> int:
        """Return the log offset up to which the log has not changed since a generation."""
        if generation > self.generation:  # of another log
            return 0
        later = [offset for number, offset in self._state.steps if number > generation]
        return later[0] if later else NO_FLOOR  # offsets ascend: the first is the lowest

    def begin(self, offset: int) -> None:
        """Record a truncation to a log offset before the log is changed.

        Raises:
            OSError: The file cannot be written; nothing has changed.
        """
        number = self.generation + 1
        steps = [step for step in self._state.steps if step[1] < offset]
        if len(steps) >= STEPS_MAX:  # a floor that is too low only invalidates more checkpoints
            steps[:2] = [(steps[1][0], steps[0][1])]
        changed = (*steps, (number, offset))
        self._write(replace(self._state, generation=number, pending=offset, steps=changed))

    def finish(self) -> None:
        """Record that the data that the store itself derives match the truncated log.

        Raises:
            OSError: The file cannot be written; the next start completes the truncation again.
        """
        self._write(replace(self._state, pending=None))

    def record_loss(self, offset: int) -> None:
        """Record that the log has lost, or may have lost, all bytes from a log offset on.

        Raises:
            OSError: The disk refused it.
        """
        self.begin(offset)
        self.finish()

    def followed(self, name: str) -> int:
        """Return the generation of the log that a file of another format matches."""
        return dict(self._state.followed).get(name, 0)

    def follow(self, name: str) -> None:
        """Record that a file, which is on the disk, matches the current generation of the log.

        Raises:
            OSError: The disk refused it.
        """
        if self.followed(name) != self.generation:
            followed = dict(self._state.followed) | {name: self.generation}
            self._write(replace(self._state, followed=tuple(sorted(followed.items()))))

    def _write(self, state: _State) -> None:
        value = {
            "followed": dict(state.followed),
            "generation": state.generation,
            "pending": state.pending,
            "truncations": [list(step) for step in state.steps],
        }
        write_config(self._path, dumps(value))
        self._state = state


def _decode(value: Any) -> _State:
    pending = value["pending"]
    steps = tuple((int(number), int(offset)) for number, offset in value["truncations"])
    followed = tuple((str(name), int(position)) for name, position in value["followed"].items())
    generation = int(value["generation"])
    if any(a[0] >= b[0] or a[1] >= b[1] for a, b in pairwise(steps)):
        raise ValueError("its truncations are not in order")
    if steps and steps[-1][0] > generation:
        raise ValueError("its generation is older than its last truncation")
    return _State(generation, None if pending is None else int(pending), steps, followed)
