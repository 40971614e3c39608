"""Order infos: Apache's file, and malformed files."""

from __future__ import annotations

from pathlib import Path

import pytest

from duemq.pop.order_info import KEPT_MS, OrderInfo, OrderTable, Settled, read_table
from duemq.pop.pop_offsets import GroupQueue
from duemq.registry.config_file import ConfigFile
from duemq_common.errors import CorruptStore

PLACE = GroupQueue("g", "T", 3)
APACHES = (
    '{"table":{"T@g":{3:{"cm":2,"i":60000,"l":1000500,"o":[17,2,3],"oc":{17:1},'
    '"ot":{19:2000000},"popTime":1000000}}}}'
)


def table_of(path: Path, text: str = "") -> OrderTable:
    if text:
        path.write_text(text)
    table = OrderTable(ConfigFile(path), lambda topic, group: topic == "T")
    table.load()
    return table


def test_apaches_file_is_read_and_written_again(tmp_path: Path) -> None:
    path = tmp_path / "consumerOrderInfo.json"
    table = table_of(path, APACHES)
    expected = OrderInfo(
        1_000_000, 60_000, [17, 19, 20], None, 1_000_500, 2, {19: 2_000_000}, {17: 1}
    )
    assert dict(table.group_queues()) == {PLACE: expected}
    assert expected.open == [17, 20]
    assert table.acknowledge(PLACE, 17, 1_000_000) == 20
    table.persist()
    expected.acked = 3
    assert dict(table_of(path).group_queues()) == {PLACE: expected}


def test_acknowledgements_advance_the_group_in_order(tmp_path: Path) -> None:
    table = table_of(tmp_path / "x", APACHES)
    assert table.acknowledge(PLACE, 20, 1_000_000) == 17
    assert table.acknowledge(PLACE, 18, 1_000_000) is Settled.ILLEGAL
    assert table.acknowledge(PLACE, 17, 999_999) is Settled.STALE
    assert table.acknowledge(GroupQueue("h", "T", 3), 17, 1_000_000) is Settled.ILLEGAL
    assert table.acknowledge(PLACE, 17, 1_000_000) == 21


def test_a_queue_is_blocked_while_one_open_message_is_invisible(tmp_path: Path) -> None:
    table = table_of(tmp_path / "x", APACHES)
    assert table.blocked_until(PLACE, None, 1_059_999) == 1_060_000
    assert table.blocked_until(PLACE, None, 1_060_000) is None
    assert table.set_visible(PLACE, 20, 1_000_000, 3_000_000)
    assert table.blocked_until(PLACE, None, 1_060_000) == 3_000_000
    assert not table.set_visible(PLACE, 21, 1_000_000, 3_000_000)
    assert not table.set_visible(PLACE, 20, 1_000_001, 3_000_000)


def test_entries_without_topic_or_a_day_old_are_removed(tmp_path: Path) -> None:
    text = APACHES.replace('"T@g"', '"U@g":{0:{"l":1000500,"o":[1],"popTime":1}},"T@g"')
    table = table_of(tmp_path / "x", text)
    assert len(dict(table.group_queues())) == 2
    table.clean(1_000_500)
    assert [place for place, _ in table.group_queues()] == [PLACE]
    table.clean(1_000_500 + KEPT_MS)
    assert dict(table.group_queues())
    table.clean(1_000_501 + KEPT_MS)
    assert not dict(table.group_queues())


def test_fields_that_a_file_lacks_have_their_defaults(tmp_path: Path) -> None:
    table = table_of(tmp_path / "x", '{"table":{"T@g":{3:{"o":[17,2]}}}}')
    info = OrderInfo(0, 0, [17, 19], None, 0, 0, {}, {})
    assert dict(table.group_queues()) == {PLACE: info}


WRONG = {
    "no list": '{"table":{"T@g":{3:{"o":7}}}}',
    "words": '{"table":{"T@g":{3:{"o":["a"]}}}}',
    "no group": '{"table":{"T":{3:{"o":[1]}}}}',
    "no object": '{"table":[]}',
    "many": '{"table":{"T@g":{3:{"o":' + str([1] * 65) + "}}}}",
}


@pytest.mark.parametrize("text", WRONG.values(), ids=WRONG)
def test_a_malformed_file_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(CorruptStore):
        table_of(tmp_path / "x", text.replace('"table":[]', '"table":[1]'))


def test_an_empty_file_content_is_an_empty_table() -> None:
    assert read_table({}) == {}
