"""Search for a text in the records of a scan, compared with `in`."""

from __future__ import annotations

from pathlib import Path

from message_store.log.text_search import rows_with
from tests.support.stores import open_store, put_one

BODIES = [b"a.b", b"axb", b"a.", b"b", b"b a.b a.b", b"a.b"]


def test_records_with_the_text_are_returned_in_order(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        for body in BODIES:
            put_one(store, "T", 0, body)
        [chunk] = [rows.copy() for rows in store.scan(0)]
        for rows in (chunk, chunk[1:-1], chunk[::2], chunk[:0]):
            offsets = rows["phys_offset"].tolist()
            expected = [each for each in offsets if b"a.b" in store.read_record(each).body]
            assert rows_with(store, rows, b"a.b")["phys_offset"].tolist() == expected
