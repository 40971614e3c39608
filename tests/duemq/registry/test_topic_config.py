"""One topic's JSON and its attributes."""

from __future__ import annotations

from typing import Any

import pytest

from duemq.registry.topic_config import (
    GROUP_ATTRIBUTES,
    TopicConfig,
    alter_attributes,
    parse_attribute_changes,
)

OLD = {"order": False, "perm": 6, "readQueueNums": 8, "topicFilterType": "SINGLE_TAG"}
OLD |= {"topicName": "T", "topicSysFlag": 0, "writeQueueNums": 4}


def test_a_topic_of_4_9_is_written_as_5_3_writes_it() -> None:
    topic = TopicConfig.from_json(OLD)
    assert (topic.name, topic.read_queues, topic.write_queues, topic.perm) == ("T", 8, 4, 6)
    assert list(topic.to_json()) == ["attributes", *OLD]


def test_unknown_members_are_kept() -> None:
    data = OLD | {"attributes": {"message.type": "DELAY"}, "zone": {"a": [1]}}
    assert TopicConfig.from_json(data).to_json() == data


def test_what_is_missing_has_a_default() -> None:
    assert TopicConfig.from_json({}, "T") == TopicConfig(name="T")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"readQueueNums": -1}, "-1 read queues"),
        ({"writeQueueNums": 65_537}, "65537 write queues"),
        ({"perm": 64}, "perm 64"),
        ({"perm": "x"}, "invalid literal"),
        ({"topicName": "a/b"}, "directory"),
        ({"topicName": ".."}, "the name"),
        ({"topicName": "x" * 256}, "255 bytes"),
        ({"topicFilterType": "DOUBLE"}, "topicFilterType"),
        ({"attributes": ["a"]}, "attributes"),
        ({"order": 7}, "order"),
    ],
)
def test_impossible_topics_report_the_reason(change: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        TopicConfig.from_json(OLD | change)


def test_only_some_topics_are_closed_to_clients() -> None:
    assert TopicConfig(name="SCHEDULE_TOPIC_XXXX").closed
    assert not TopicConfig(name="TBW102").closed


@pytest.mark.parametrize(
    ("text", "changes"),
    [
        ("", {}),
        (" ", {}),
        ("+message.type=DELAY", {"+message.type": "DELAY"}),
        ("+a=1, -b,+c=x=y", {"+a": "1", "-b": "", "+c": "x=y"}),
    ],
)
def test_attribute_changes_are_parsed(text: str, changes: dict[str, str]) -> None:
    assert parse_attribute_changes(text) == changes


@pytest.mark.parametrize("text", ["a=1", "+a", "+a=", "-a=1", "+", "-", "+a=1,+a=2"])
def test_malformed_attribute_changes(text: str) -> None:
    with pytest.raises(ValueError, match="attribute"):
        parse_attribute_changes(text)


@pytest.mark.parametrize(
    ("old", "changes", "new"),
    [
        (None, {"+message.type": "DELAY"}, {"message.type": "DELAY"}),
        ({"message.type": "FIFO"}, {"+message.type": "DELAY"}, {"message.type": "DELAY"}),
        ({"reserve.time": "5"}, {"-reserve.time": ""}, {}),
        (
            None,
            {"+queue.type": "SimpleCQ", "+cleanup.policy": "DELETE", "+reserve.time": "-1"},
            {"queue.type": "SimpleCQ", "cleanup.policy": "DELETE", "reserve.time": "-1"},
        ),
        ({"x": "kept"}, {}, {"x": "kept"}),
    ],
)
def test_attributes_are_altered(
    old: dict[str, str] | None, changes: dict[str, str], new: dict[str, str]
) -> None:
    assert alter_attributes(old, changes) == new


@pytest.mark.parametrize(
    ("old", "changes", "why"),
    [
        (None, {"+no.such": "1"}, "there is no attribute"),
        (None, {"+message.type": "LATER"}, "cannot be 'LATER'"),
        (None, {"+reserve.time": "soon"}, "cannot be"),
        (None, {"+reserve.time": "-2"}, "cannot be"),
        (None, {"+reserve.time": str(1 << 63)}, "cannot be"),
        ({}, {"+queue.type": "SimpleCQ"}, "when the topic is created"),
        ({}, {"-message.type": ""}, "not set"),
        ({}, {"message.type": "DELAY"}, "neither"),
    ],
)
def test_attributes_that_cannot_be(
    old: dict[str, str] | None, changes: dict[str, str], why: str
) -> None:
    with pytest.raises(ValueError, match=why):
        alter_attributes(old, changes)


@pytest.mark.finding("D1")
@pytest.mark.parametrize("old", [None, {}], ids=["created", "changed"])
@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"+queue.type": "BatchCQ"}, "does not support BatchCQ: omit queue.type"),
        ({"+cleanup.policy": "COMPACTION"}, "does not compact topics: omit cleanup.policy"),
    ],
)
def test_kinds_of_topics_that_are_not_served_are_refused(
    old: dict[str, str] | None, changes: dict[str, str], why: str
) -> None:
    with pytest.raises(ValueError, match=why):
        alter_attributes(old, changes)


@pytest.mark.finding("D5")
def test_unknown_attributes_of_groups_are_refused() -> None:
    with pytest.raises(ValueError, match=r"unsupported key: there is no attribute 'queue.type'"):
        alter_attributes(None, {"+queue.type": "50"}, supported=GROUP_ATTRIBUTES)
