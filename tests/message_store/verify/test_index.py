"""Check of index files: their shape is detected."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from message_store import layout
from message_store.log.batch import PutBatch
from message_store.verify.index import find_shape
from tests.support.stores import add_message, open_store


@pytest.mark.parametrize("slots", [1, 7, 50, 503])
@pytest.mark.parametrize("keys", [1, 2, 70])
def test_the_shape_of_an_index_file_is_detected(tmp_path: Path, slots: int, keys: int) -> None:
    with open_store(tmp_path, index_slots_max=slots, index_entries_max=1_000) as store:
        batch = PutBatch()
        for number in range(keys):
            add_message(store, batch, "T", 0, properties={"KEYS": f"k{number}"})
        store.put(batch)
    (path,) = (tmp_path / "index").iterdir()
    data = np.fromfile(path, np.uint8)
    header = np.frombuffer(data[: layout.INDEX_HEADER.itemsize], layout.INDEX_HEADER)[0]
    assert find_shape(data, header) == slots
    assert find_shape(data, header, slots=slots) == slots
    assert find_shape(data[:-1], header) is None
