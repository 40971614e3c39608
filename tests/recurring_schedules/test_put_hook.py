"""Messages that create schedules, and messages that pretend to be occurrences."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from delayed_delivery.quarantine import NO_HOST
from message_store.log.batch import PutBatch
from message_store.log.properties import encode_properties
from recurring_schedules.put_hook import ScheduleHook
from tests.recurring_schedules.rig import MONDAY_MS, ScheduleRig

MINUTE_MS = 60_000
CRON = {"DUEMQ_SCHEDULE_NAME": "s", "DUEMQ_SCHEDULE_CRON": "* * * * *", "UNIQ_KEY": "u"}


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[ScheduleRig]:
    rig = ScheduleRig(tmp_path).open()
    yield rig
    rig.close()


def put(rig: ScheduleRig, *messages: dict[str, str], topic: str = "T", **more: int) -> PutBatch:
    """Append messages as a client's sends; return the batch."""
    batch = PutBatch()
    for properties in messages:
        batch.add(
            topic_index=rig.store.topics.add(topic),
            queue_id=0,
            body=b"hello",
            properties=encode_properties(properties),
            born_ms=1,
            born_host=NO_HOST,
            store_host=NO_HOST,
            **more,
        )
    now_ms = rig.clock.now_ms()
    rig.hook(batch, now_ms)
    ScheduleHook(rig.store.topics, lambda: rig.requests)(batch, now_ms)
    rig.store.put(batch)
    return batch


def refusal(rig: ScheduleRig, properties: dict[str, str], **more: str) -> str:
    """Return the remark of a refused message."""
    batch = put(rig, properties, **more)
    assert batch.rows["status"][0] == 13
    return batch.remarks[0]


def test_a_message_creates_a_schedule_and_is_not_delivered_itself(rig: ScheduleRig) -> None:
    properties = CRON | {"TAGS": "t", "KEYS": "k", "color": "red", "MSG_REGION": "r"}
    batch = put(rig, properties, flag=7, sys_flag=1)
    assert batch.rows["status"][0] == 0
    assert batch.properties(0)["UNIQ_KEY"] == "u"
    rig.run_to(MONDAY_MS + 2 * MINUTE_MS)
    assert rig.planned() == [MONDAY_MS + MINUTE_MS, MONDAY_MS + 2 * MINUTE_MS]
    records = [record for queue in range(4) for record in rig.delivered("T", queue)]
    assert len(records) == 2
    for record in records:
        assert (record.body, record.flag, record.sys_flag & 1) == (b"hello", 7, 1)
        assert [record.properties[name] for name in ("TAGS", "KEYS", "color")] == ["t", "k", "red"]
        assert record.properties.keys().isdisjoint({"MSG_REGION", "DUEMQ_SCHEDULE_CRON"})


def test_properties_that_a_v5_client_sets_are_not_those_of_occurrences(rig: ScheduleRig) -> None:
    for time_ms in (1, 2):  # a repeated message is born later
        of_v5 = {"PGROUP": "T", "__BORNHOST": "10.0.0.1", "BORN_TIMESTAMP": str(time_ms)}
        of_v5["TRACE_CONTEXT"] = f"00-{time_ms:032x}-{time_ms:016x}-01"
        assert put(rig, CRON | of_v5).rows["status"][0] == 0
    rig.run_to(MONDAY_MS + MINUTE_MS)
    [record] = [record for queue in range(4) for record in rig.delivered("T", queue)]
    assert record.properties.keys().isdisjoint(of_v5)


def test_every_property_is_a_field_of_the_definition(rig: ScheduleRig) -> None:
    times = {"every_ms": 60_000, "phase_ms": 1, "start_ms": 2, "end_ms": 10**13, "jitter_ms": 3}
    fields = times | {"catch_up_ms": 4, "overlap": "latest", "zone": "Asia/Kathmandu"}
    properties = {f"DUEMQ_SCHEDULE_{name.upper()}": str(value) for name, value in fields.items()}
    more = {"DUEMQ_SCHEDULE_NAME": "s", "DUEMQ_SCHEDULE_EXCLUDE": "2026-12-25; * * 24 12 *"}
    assert not put(rig, properties | more).rows["status"][0]
    definition = rig.table.record(rig.store, rig.table.find("s")).definition
    assert {name: getattr(definition, name) for name in fields} == fields
    assert definition.exclude == ("2026-12-25", "* * 24 12 *")


def test_a_repeated_message_changes_nothing(rig: ScheduleRig) -> None:
    put(rig, CRON, CRON | {"UNIQ_KEY": "v"})
    rig.run_to(MONDAY_MS + MINUTE_MS)
    put(rig, CRON | {"UNIQ_KEY": "w"})
    rig.run_to(MONDAY_MS + 2 * MINUTE_MS)
    rig.kill()
    rig.open()
    rig.run_to(MONDAY_MS + 3 * MINUTE_MS)
    assert rig.planned() == [MONDAY_MS + n * MINUTE_MS for n in (1, 2, 3)]
    assert len(rig.table) == 1


def test_a_repeated_message_leaves_a_paused_schedule_paused(rig: ScheduleRig) -> None:
    put(rig, CRON)
    rig.call("pause", "s")
    put(rig, CRON)
    rig.run_to(MONDAY_MS + 2 * MINUTE_MS)
    assert rig.planned() == []


@pytest.mark.parametrize("together", [False, True])
def test_another_definition_of_a_name_is_refused(rig: ScheduleRig, together: bool) -> None:
    other = CRON | {"DUEMQ_SCHEDULE_CRON": "0 * * * *"}
    if together:
        batch = put(rig, CRON, other)
        assert batch.rows["status"][:2].tolist() == [0, 13]
        remark = batch.remarks[1]
    else:
        put(rig, CRON)
        remark = refusal(rig, other)
    assert "schedule s exists with another definition" in remark
    rig.run_to(MONDAY_MS + MINUTE_MS)
    assert rig.planned() == [MONDAY_MS + MINUTE_MS]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"DUEMQ_SCHEDULE_CRON": "61 * * * *"}, "the cron expression '61 * * * *' is invalid"),
        ({"DUEMQ_SCHEDULE_END_MS": "1000"}, "never fires"),
        ({"DUEMQ_SCHEDULE_ZONE": "Mars/Base"}, "there is no time zone 'Mars/Base'"),
        ({"DUEMQ_SCHEDULE_NAME": "a b"}, "cannot be the name of a schedule"),
        ({"DUEMQ_SCHEDULE_EVERY_MS": "5000"}, "give either a cron expression or an interval"),
        ({"DUEMQ_SCHEDULE_JITTER_MS": "soon"}, "a property is malformed"),
        ({"DUEMQ_SCHEDULE_CORN": "* * * * *"}, "there is no property DUEMQ_SCHEDULE_CORN"),
        ({"TIMER_DELAY_MS": "5000"}, "the property 'TIMER_DELAY_MS' is reserved"),
        ({"TRAN_MSG": "true"}, "the property 'TRAN_MSG' is reserved"),
    ],
)
def test_an_invalid_schedule_is_refused(
    rig: ScheduleRig, changes: dict[str, str], text: str
) -> None:
    assert text in refusal(rig, CRON | changes)
    assert len(rig.table) == 0
    rig.run_to(MONDAY_MS + 2 * MINUTE_MS)
    assert rig.delivered("T", 0) == []


def test_a_schedule_needs_a_name(rig: ScheduleRig) -> None:
    text = refusal(rig, {"DUEMQ_SCHEDULE_CRON": "* * * * *"})
    assert text == "the schedule is refused: the property DUEMQ_SCHEDULE_NAME is missing"


@pytest.mark.parametrize("delay", [{}, {"TIMER_DELAY_MS": "5000"}])
@pytest.mark.parametrize(
    "name",
    ["DUEMQ_SCHEDULE", "DUEMQ_SCHEDULE_TIME", "DUEMQ_SCHEDULE_NEXT", "DUEMQ_SCHEDULE_MANUAL"],
)
def test_nobody_forges_an_occurrence(rig: ScheduleRig, name: str, delay: dict[str, str]) -> None:
    assert f"the property {name} is set by the broker" in refusal(rig, {name: "1"} | delay)


def test_a_retry_of_an_occurrence_is_accepted_and_is_none(rig: ScheduleRig) -> None:
    put(rig, CRON)
    later_ms = MONDAY_MS + 10 * MINUTE_MS
    occurrence = {
        "DUEMQ_SCHEDULE": "s",
        "DUEMQ_SCHEDULE_TIME": str(later_ms),
        "DUEMQ_SCHEDULE_NEXT": str(later_ms + MINUTE_MS),
        "UNIQ_KEY": f"s@{later_ms}",
        "TIMER_DELAY_MS": "90000",
    }
    assert put(rig, occurrence, topic="%RETRY%group").rows["status"][0] == 0
    rig.kill()
    rig.open()
    rig.run_to(MONDAY_MS + 2 * MINUTE_MS)
    assert rig.planned() == [MONDAY_MS + MINUTE_MS, MONDAY_MS + 2 * MINUTE_MS]


def test_a_client_batch_creates_no_schedule(rig: ScheduleRig) -> None:
    batch = PutBatch()
    for _ in range(2):
        batch.add(
            topic_index=rig.store.topics.add("T"),
            queue_id=0,
            body=b"hello",
            properties=encode_properties(CRON),
            born_ms=1,
            born_host=NO_HOST,
            store_host=NO_HOST,
        )
    batch.together.append((0, 2))
    ScheduleHook(rig.store.topics, lambda: rig.requests)(batch, rig.clock.now_ms())
    assert batch.rows["status"][:2].tolist() == [13, 0]  # the put path refuses the others
    assert "not in a batch" in batch.remarks[0]


def test_a_definition_with_a_long_search_needs_a_request_of_its_own(
    rig: ScheduleRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search of 0.4 s for each message of a turn would stop all deliveries."""
    monkeypatch.setattr("recurring_schedules.occurrences.STEP_WORK", 100)
    monkeypatch.setattr("recurring_schedules.put_hook.TURN_WORK", 1_000)
    long = CRON | {"DUEMQ_SCHEDULE_EXCLUDE": "* 0 * * *;* 1 * * *"}
    batch = put(rig, CRON | {"DUEMQ_SCHEDULE_NAME": "t"}, long, CRON)
    assert batch.rows["status"][:3].tolist() == [0, 13, 2]
    assert "takes too long for a send" in batch.remarks[1]
    assert "send it again" in batch.remarks[2]
    assert put(rig, CRON).rows["status"][0] == 0
    assert len(rig.table) == 2
