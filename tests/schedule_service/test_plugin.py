"""The level service as a plugin of the broker."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from delayed_delivery.plugin import BrokerPlugin
from duemq_common.errors import ConfigError
from duemq_common.json_dialect import loads
from duemq_common.request import Request
from duemq_common.topics import DECISION_TOPIC, LEVELS_TOPIC, QUARANTINE_TOPIC, SCHEDULE_TOPIC
from message_store.retention.pins import UNKNOWN
from schedule_service.deliverer import Deliverer
from schedule_service.plugin import create_plugin
from tests.support.level_rig import FakeClock, FakeHost, level_service


def test_it_implements_the_plugin_interface(tmp_path: Path) -> None:
    plugin: BrokerPlugin = create_plugin(FakeHost(str(tmp_path), FakeClock(), {}))  # type: ignore[assignment]
    topics = {topic.name: (topic.queues, topic.perm) for topic in plugin.system_topics()}
    ours = dict.fromkeys((QUARANTINE_TOPIC, DECISION_TOPIC, LEVELS_TOPIC), (1, 4))
    assert topics == {SCHEDULE_TOPIC: (18, 6), **ours}
    (rule,) = plugin.tags_code_rules()
    assert (rule.topic, rule.tables[0].delays_ms.size) == (SCHEDULE_TOPIC, 19)  # type: ignore[attr-defined]
    assert plugin.first_pending_offset() is UNKNOWN
    assert plugin.admin_views()["runtime"]() == {}
    assert len(plugin.admin_views()["levels"]()["levels"]) == 18


def test_request_45_returns_the_offsets(tmp_path: Path) -> None:
    async def steps() -> None:
        async with level_service(tmp_path) as rig:
            rig.send(1, count=3)
            rig.send(2)
            await rig.advance(1_000)
            handler = rig.plugin.request_handlers()[45]
            response = await handler(Request(45, {}))
            data = loads(bytes(response.body).decode())
            assert data["offsetTable"] == {1: 3, 2: 0}
            assert {"dataVersion", "offsetTable"} <= data.keys()

    asyncio.run(steps())


def test_request_45_is_refused_where_levels_do_not_run(tmp_path: Path) -> None:
    """A replica does not know the progress of the group."""
    plugin = create_plugin(FakeHost(str(tmp_path), FakeClock(), {}))

    async def steps() -> None:
        response = await plugin.request_handlers()[45](Request(45, {}))
        assert (response.code, response.remark) == (1, "levels do not run here now: use the master")

    asyncio.run(steps())


def test_views_are_plain_data(tmp_path: Path) -> None:
    async def steps() -> None:
        async with level_service(tmp_path) as rig:
            rig.send(1, count=3)
            rig.send(2, count=2)
            await rig.advance(1_003)
            views = rig.plugin.admin_views()
            assert views["runtime"]() == {
                "scheduleMessageOffset_1": "3,3",
                "scheduleMessageOffset_2": "0,2",
            }
            view = json.loads(json.dumps(views["levels"]()))
            assert (view["mode"], view["pending"]) == ("sync", 2)
            first, second, third, _ = view["levels"]
            assert (first["pending"], first["delivered"], first["offset"]) == (0, 3, 3)
            assert (first["lateness_ms"]["p50"], first["lateness_ms"]["max"]) == (3, 3)
            assert (second["pending"], second["delay_ms"]) == (2, 5_000)
            assert second["next_due_ms"] == rig.clock.now_ms() + 5_000 - 1_003
            assert (third["pending"], third["next_due_ms"]) == (0, None)

    asyncio.run(steps())


def test_metrics(tmp_path: Path) -> None:
    async def steps() -> None:
        async with level_service(tmp_path) as rig:
            rig.send(1, count=3)
            rig.send(2)
            await rig.advance(1_003)
            get = rig.host.metrics.get_sample_value
            assert get("duemq_level_delivered_total", {"level": "1"}) == 3
            assert get("duemq_level_pending", {"level": "2"}) == 1
            bucket = {"level": "1", "le": "0.005"}
            assert get("duemq_level_lateness_seconds_bucket", bucket) == 3
            assert get("duemq_level_lateness_seconds_bucket", bucket | {"le": "0.002"}) == 0
            assert get("duemq_level_lateness_seconds_count", {"level": "1"}) == 3
            assert get("duemq_level_lateness_seconds_sum", {"level": "1"}) == 0.009
            host = rig.host
        assert host.metrics.get_sample_value("duemq_level_pending", {"level": "2"}) is None
        assert host.scheduler.jobs == {}

    asyncio.run(steps())


def test_a_reload_changes_levels_and_limits_at_once(tmp_path: Path) -> None:
    async def steps() -> None:
        async with level_service(tmp_path) as rig:
            rig.plugin.reconfigure(
                {"messageDelayLevel": "2s", "enableScheduleAsyncDeliver": "true"}
            )
            rig.send(7, b"held as level 1")
            await rig.advance(2_000)
            (record,) = rig.records()
            assert record.properties["DELAY"] == "1"
            assert rig.plugin.admin_views()["levels"]()["mode"] == "async"
            clock = rig.clock
        text = (tmp_path / "config" / "delayLevels.json").read_text()
        assert [row["levels"] for row in loads(text)["history"]] == ["2s"]
        async with level_service(tmp_path, clock, {"messageDelayLevel": "3s"}) as rig:
            rows = [(p.from_offset > 0, p.text) for p in rig.plugin.history.texts]
            assert rows == [(False, "2s"), (True, "3s")]

    asyncio.run(steps())


def test_levels_that_cannot_be_written_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(path: Path, text: str) -> None:
        raise OSError(28, "No space left on device")

    async def steps() -> None:
        async with level_service(tmp_path) as rig:
            monkeypatch.setattr("schedule_service.level_tables.write_config", no_room)
            with pytest.raises(ConfigError, match="No space left"):
                rig.plugin.reconfigure({"messageDelayLevel": "9s"})
            rig.send(1)
            await rig.advance(1_000)
            assert len(rig.bodies()) == 1

    asyncio.run(steps())


def test_levels_beyond_18_and_levels_that_are_no_longer_configured(tmp_path: Path) -> None:
    async def steps() -> None:
        text = " ".join(f"{n}s" for n in range(1, 41))
        async with level_service(tmp_path, properties={"messageDelayLevel": text}) as rig:
            rig.send(40, b"forty")
            clock = rig.clock
        async with level_service(tmp_path, clock, {"messageDelayLevel": "1s"}) as rig:
            view = rig.plugin.admin_views()["levels"]()
            assert [row["level"] for row in view["levels"] if row["pending"]] == [40]
            await rig.advance(40_000)
            assert rig.bodies() == [b"forty"]

    asyncio.run(steps())


def test_a_programming_error_stops_the_broker_in_order(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object, **options: object) -> None:
        raise ZeroDivisionError("a fault")

    async def steps() -> None:
        async with level_service(tmp_path) as rig:
            rig.send(1)
            monkeypatch.setattr(Deliverer, "deliver_batch", fail)
            rig.clock.advance(1_000)
            for _ in range(50):
                await asyncio.sleep(0)
            assert rig.host.stopped == ["ZeroDivisionError: a fault"]
            rig.host.stopped.clear()
            monkeypatch.undo()
            clock = rig.clock
        async with level_service(tmp_path, clock) as rig:
            assert len(rig.bodies()) == 1

    asyncio.run(steps())
    assert "cannot continue" in caplog.text
