"""Identity of a store, by which plans and ledgers are assigned to it.

The identity is random, created once, and stored in `config/duemq.store.json` (with `.bak`). A copy
of the directory has the same identity, because its messages and its ledger are the same.
"""

from __future__ import annotations

import json
import re
import secrets
from pathlib import Path
from typing import Any, Final

from duemq_common.json_dialect import load_config, write_config

FILE_NAME: Final = "duemq.store.json"
_ID = re.compile(r"[0-9a-z-]{1,64}")


def store_id(config_directory: Path) -> str:
    """Return the identity of a store; create one if it has none.

    Raises:
        CorruptStore: The file exists, but neither it nor its `.bak` can be read.
        OSError: A new identity cannot be written.
    """
    path = config_directory / FILE_NAME
    identity = known_store_id(config_directory)
    if identity is None:
        identity = f"store-{secrets.token_hex(8)}"
        write_config(path, json.dumps({"storeId": identity}, indent=1) + "\n")
    return identity


def known_store_id(config_directory: Path) -> str | None:
    """Return the identity of a store, None if it has none; write nothing.

    Raises:
        CorruptStore: The file exists, but neither it nor its `.bak` can be read.
    """
    return load_config(config_directory / FILE_NAME, _decode)


def _decode(value: Any) -> str:
    name = value["storeId"]
    if not isinstance(name, str) or not _ID.fullmatch(name):
        raise ValueError(f"storeId {name!r} is not a valid store name")
    return name
