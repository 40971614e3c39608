import time

import pytest

from duemq.metrics.put_get_stats import HOUR_SAMPLE_MS, SAMPLE_MS, BrokerStats
from duemq_common.clock import FakeClock
from tests.support.fakes import FakeStore, put


def rig() -> tuple[FakeStore, BrokerStats]:
    store = FakeStore(FakeClock())
    stats = BrokerStats(store.topics)
    store.add_dispatcher(stats.on_append)
    return store, stats


def test_puts_are_counted_by_the_topic_of_the_log() -> None:
    store, stats = rig()
    stats.sample(0)
    put(store, "T", b"x", b"y")
    put(store, "U", b"z")
    stats.sample(SAMPLE_MS)
    assert stats.windows("TOPIC_PUT_NUMS", "T")["statsMinute"].sum == 2
    assert stats.windows("TOPIC_PUT_SIZE", "T")["statsMinute"].sum > 100
    assert stats.windows("BROKER_PUT_NUMS", "c")["statsMinute"].sum == 3
    assert stats.topic_tps("U") == 0.1
    assert stats.totals.puts == 3
    assert stats.tps("put") == "0.3 0.3 0.0"


def test_many_topics_grow_the_columns() -> None:
    store, stats = rig()
    stats.sample(0)
    for n in range(200):
        put(store, f"T{n}", b"x")
    stats.sample(SAMPLE_MS)
    assert stats.windows("TOPIC_PUT_NUMS", "T199")["statsMinute"].sum == 1


def test_pulls_are_counted_per_group() -> None:
    _, stats = rig()
    stats.sample(0)
    stats.messages_got("T", "G", count=6, body=bytes(60))
    stats.messages_got("T", "G", count=2, body=bytes(20))
    stats.got_nothing()
    stats.sent_back("T", "G")
    stats.sample(SAMPLE_MS)
    rates = stats.windows("GROUP_GET_NUMS", "T@G")["statsMinute"]
    assert (rates.sum, rates.tps, rates.avgpt) == (8, 0.8, 4.0)
    assert stats.windows("GROUP_GET_SIZE", "T@G")["statsMinute"].sum == 80
    assert stats.windows("SNDBCK_PUT_NUMS", "T@G")["statsMinute"].sum == 1
    assert stats.tps("total") == "0.3 0.3 0.0"
    assert stats.group_tps("T", "G") == 0.8


@pytest.mark.parametrize(
    ("name", "key"),
    [("TOPIC_PUT_NUMS", "no"), ("GROUP_GET_NUMS", "T@no"), ("NO_SUCH", "T"), ("", "")],
)
def test_what_was_never_counted_is_not_there(name: str, key: str) -> None:
    assert rig()[1].windows(name, key) is None


def test_windows_slide() -> None:
    store, stats = rig()
    for step in range(13):
        put(store, "T", b"x")
        stats.sample(step * SAMPLE_MS)
    assert stats.windows("TOPIC_PUT_NUMS", "T")["statsMinute"].sum == 6
    assert stats.windows("TOPIC_PUT_NUMS", "T")["statsHour"].sum == 0
    stats.sample(HOUR_SAMPLE_MS)
    assert stats.windows("TOPIC_PUT_NUMS", "T")["statsHour"].sum == 12


@pytest.mark.finding("D3")
def test_totals_at_midnight_change_at_local_midnight_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Shanghai")  # UTC+8
    time.tzset()
    try:
        store, stats = rig()
        midnight_ms = 1_700_064_000_000  # 2023-11-16 00:00 in Shanghai, 16:00 UTC
        put(store, "T", b"x")
        stats.sample(midnight_ms - 7_200_000)
        assert stats.puts_at_midnight == (0, 0)  # the first sample is no midnight
        stats.sample(midnight_ms - SAMPLE_MS)
        assert stats.puts_at_midnight == (0, 0)
        stats.sample(midnight_ms)
        assert stats.puts_at_midnight == (0, 1)
        put(store, "T", b"x")
        stats.sample(midnight_ms + 28_800_000)  # midnight in UTC
        stats.sample(midnight_ms - SAMPLE_MS)  # the clock was set back
        stats.sample(midnight_ms)
        assert stats.puts_at_midnight == (0, 1)
        stats.sample(midnight_ms + 86_400_000)
        assert stats.puts_at_midnight == (1, 2)
    finally:
        monkeypatch.undo()
        time.tzset()
