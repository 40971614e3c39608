"""Without timers a message with a time of its own is refused, never delivered early."""

from __future__ import annotations

import pytest

from broker.timers import TIMER_TOPIC, refuse_timers, timers_are_held
from message_store.batch import PutBatch
from message_store.plugin import SystemTopic
from tests.store_help import add_message, open_store


@pytest.mark.parametrize(
    ("rule", "properties", "status"),
    [
        ("a plain message passes", {}, 0),
        ("a level passes", {"DELAY": "3"}, 0),
        ("a time is refused", {"TIMER_DELIVER_MS": "1700000000000"}, 1),
        ("a delay in ms is refused", {"TIMER_DELAY_MS": "5"}, 1),
        ("a delay in s is refused", {"TIMER_DELAY_SEC": "5"}, 1),
        ("no number is refused", {"TIMER_DELAY_SEC": "soon"}, 1),
        ("what was a timer before passes", {"TIMER_DELAY_SEC": "5", "TIMER_OUT_MS": "17"}, 0),
    ],
)
def test_refusal(tmp_path, rule, properties, status):
    with open_store(tmp_path) as store:
        batch = PutBatch()
        add_message(store, batch, "T", properties=properties)
        refuse_timers(batch, 0)
        assert int(batch.rows[0]["status"]) == status, rule
        assert ("timerWheelEnable" in batch.remarks.get(0, "")) == bool(status)


def test_a_plugin_that_brings_the_topic_holds_timers():
    assert timers_are_held([SystemTopic(TIMER_TOPIC, 1)])
    assert not timers_are_held([SystemTopic("SCHEDULE_TOPIC_XXXX", 18)])
