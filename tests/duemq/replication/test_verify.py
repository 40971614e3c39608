"""`duemq store verify` on the epochs of a log."""

from __future__ import annotations

from pathlib import Path

import pytest

from duemq.configuration.controller_config import EPOCH_FILE
from duemq.replication.epoch_file import Epochs
from duemq.replication.verify import EPOCHS, KIND
from duemq_common.json_dialect import backup_path
from message_store.verify import verify_store
from tests.support.stores import open_store, put_one

GOOD, LATE = Epochs.of([(1, 0)]).encode(), Epochs.of([(1, 0), (2, 1 << 40)]).encode()


@pytest.mark.finding("3D4")
@pytest.mark.parametrize(
    ("text", "backup", "severities"),
    [
        (None, None, []),
        (GOOD, None, []),
        (GOOD, "damaged", []),
        (LATE, None, ["warning"]),
        ("damaged", GOOD, ["warning"]),
        ("damaged", LATE, ["warning", "warning"]),
        ("damaged", None, ["error"]),
        ("damaged", "damaged", ["error", "error"]),
    ],
)
def test_epochs_that_cannot_be_used_are_reported(
    tmp_path: Path, text: str | None, backup: str | None, severities: list[str]
) -> None:
    with open_store(tmp_path) as store:
        put_one(store, "T")
    path = tmp_path / EPOCH_FILE
    for each, content in ((path, text), (backup_path(path), backup)):
        if content is not None:
            each.write_text(content)
    found = [f for f in verify_store(tmp_path, parts=[EPOCHS]).findings if f.kind == KIND]
    assert [f.severity for f in found] == severities
