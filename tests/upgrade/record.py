"""`python -m tests.upgrade.record`: write the golden stores of the former version and of 0.1.0.

Run it after a change of `FORMER`. The stores were stopped cleanly, with everything pending.
"""

from __future__ import annotations

import tarfile
import tempfile
from pathlib import Path
from typing import Final

from tests.interop import store_work
from tests.interop.store_work import TOPIC
from tests.interop.timer_work import KEYS
from tests.support.commands import TOP
from tests.upgrade.former import FIRST, FirstRelease, Former, install_former
from tests.upgrade.store_contents import StoreContents

ARCHIVE: Final = TOP / "tests" / "upgrade" / "former-store.tar.gz"
FIRST_ARCHIVE: Final = TOP / "tests" / "upgrade" / "first-store.tar.gz"
CONTENTS: Final = "contents.json"


def record(directory: Path) -> None:
    """Write the archive of the former version."""
    installed = install_former(directory / "installed")
    server = Former(installed, directory / "home", directory / "store", KEYS)
    contents = StoreContents()
    with server:
        server.create_topic(TOPIC)
        contents.add_schedule(server)
        contents.add(server, "former")
    write(directory, contents, ARCHIVE)


def record_first(directory: Path) -> None:
    """Write the archive of 0.1.0."""
    installed = install_former(directory / "installed", FIRST, FirstRelease.package)
    keys = store_work.KEYS
    server = FirstRelease(installed, directory / "home", directory / "store", keys)
    contents = StoreContents(is_newer=False)
    with server:
        server.create_topic(TOPIC)
        contents.add(server, "first")
    write(directory, contents, FIRST_ARCHIVE)


def write(directory: Path, contents: StoreContents, path: Path) -> None:
    """Write a store and its contents into an archive."""
    (directory / CONTENTS).write_text(contents.to_json())
    with tarfile.open(path, "w:gz") as archive:
        for name in ("store", CONTENTS):
            archive.add(directory / name, name)


if __name__ == "__main__":
    for recorded in (record, record_first):
        with tempfile.TemporaryDirectory() as work:
            recorded(Path(work))
