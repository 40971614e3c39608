"""Names of pop retry topics, of both versions."""

from __future__ import annotations

import pytest

from duemq.net.retry_topics import (
    normal_topic,
    retry_flag,
    retry_topic,
    retry_topics,
    topic_of_flag,
)
from duemq.pop.names import revive_topic


def test_names_equal_apaches() -> None:
    assert revive_topic("DefaultCluster") == "rmq_sys_REVIVE_LOG_DefaultCluster"
    assert list(retry_topics("T", "g")) == ["%RETRY%g_T", "%RETRY%g+T"]
    assert retry_topic("T", "g") == "%RETRY%g_T"


def test_a_message_of_a_retry_topic_returns_to_it() -> None:
    for name in retry_topics("T", "g"):
        assert retry_topic(name, "g") == name
        assert normal_topic(name, "g") == "T"
    assert normal_topic("%RETRY%h_T", "g") == "%RETRY%h_T"


@pytest.mark.parametrize(("flag", "topic"), [("0", "T"), ("1", "%RETRY%g_T"), ("2", "%RETRY%g+T")])
def test_flags_name_the_topic(flag: str, topic: str) -> None:
    assert retry_flag(topic) == flag
    assert topic_of_flag("T", "g", flag) == topic


def test_there_are_three_flags() -> None:
    with pytest.raises(ValueError, match="retry flag '3'"):
        topic_of_flag("T", "g", "3")
