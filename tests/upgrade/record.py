"""`python -m tests.upgrade.record`: write the golden store of the former version.

Run it after a change of `FORMER`. The store was stopped cleanly, with everything pending.
"""

from __future__ import annotations

import tarfile
import tempfile
from pathlib import Path
from typing import Final

from tests.interop.store_work import TOPIC
from tests.interop.timer_work import KEYS
from tests.support.commands import TOP
from tests.upgrade.former import Former, install_former
from tests.upgrade.store_contents import StoreContents

ARCHIVE: Final = TOP / "tests" / "upgrade" / "former-store.tar.gz"
CONTENTS: Final = "contents.json"


def record(directory: Path) -> None:
    """Write the archive."""
    contents, store = StoreContents(), directory / "store"
    server = Former(install_former(directory / "installed"), directory / "home", store, KEYS)
    with server:
        server.create_topic(TOPIC)
        contents.add_schedule(server)
        contents.add(server, "former")
    (directory / CONTENTS).write_text(contents.to_json())
    with tarfile.open(ARCHIVE, "w:gz") as archive:
        for name in ("store", CONTENTS):
            archive.add(directory / name, name)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as work:
        record(Path(work))
