"""The ID of a store, which is created once and survives a torn file."""

from __future__ import annotations

from pathlib import Path

import pytest

from duemq_common.errors import CorruptStore
from duemq_common.json_dialect import backup_path
from duemq_common.ledger.identity import FILE_NAME, known_store_id, store_id


def test_an_id_is_created_once(tmp_path: Path) -> None:
    config = tmp_path / "config"
    assert known_store_id(config) is None
    assert not config.exists()
    name = store_id(config)
    assert (store_id(config), known_store_id(config)) == (name, name)


def test_stores_have_different_ids(tmp_path: Path) -> None:
    assert len({store_id(tmp_path / str(number)) for number in range(20)}) == 20


@pytest.mark.parametrize("text", ["", "{", "[]", '{"storeId": 7}', '{"storeId": ""}'])
def test_a_torn_file_is_read_from_its_backup(text: str, tmp_path: Path) -> None:
    name = store_id(tmp_path)
    path = tmp_path / FILE_NAME
    backup_path(path).write_bytes(path.read_bytes())
    path.write_text(text)
    assert store_id(tmp_path) == name


def test_an_unreadable_id_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    path.write_text('{"storeId": "Ä"}')
    with pytest.raises(CorruptStore, match="Restore one of them from a copy"):
        store_id(tmp_path)
    assert path.read_text() == '{"storeId": "Ä"}'
