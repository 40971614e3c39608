"""Offsets of broadcast consumers in a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from duemq.client.message import MessageQueue
from duemq.client.queue_offsets import LocalOffsets

FIRST, SECOND = MessageQueue("T", "b", 0), MessageQueue("T", "b", 1)


def test_offsets_survive_a_restart(run: Callable[..., Any], tmp_path: Path) -> None:
    async def main() -> None:
        path = tmp_path / "folder" / "offsets.json"
        offsets = LocalOffsets(path)
        assert await offsets.committed(FIRST) is None
        assert await offsets.commit({FIRST: 5}) == {FIRST}
        await offsets.commit({SECOND: 7})
        again = LocalOffsets(path)
        assert (await again.committed(FIRST), await again.committed(SECOND)) == (5, 7)

    run(main())


@pytest.mark.parametrize("text", ["", "{", "{}x", '[["T", "b"]]', "[1]", '[["T","b",0,"x"]]'])
def test_another_file_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "offsets.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"offsets\.json does not contain offsets"):
        LocalOffsets(path)
