from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from duemq.configuration.config import BrokerConfig
from duemq.metrics.put_get_stats import BrokerStats
from duemq.registry.groups import GroupConfig
from duemq.registry.managers import Identity
from duemq.send.send_back import SendBackProcessor, plan_retry
from duemq_common.errors import RequestError
from duemq_common.request import Request, Response
from message_store import layout
from message_store.log.batch import PutBatch
from message_store.log.record import Record
from message_store.store import MessageStore
from tests.support.fakes import HOST, FakeGroups, FakeTopics, fake_topic
from tests.support.stores import open_store, put_one

IDENTITY = Identity("broker-a", "DefaultCluster", 0, HOST)


@pytest.mark.parametrize(
    ("times", "times_max", "level", "topic", "delay"),
    [
        (0, 16, 0, "%RETRY%G", 3),
        (4, 16, 0, "%RETRY%G", 7),
        (0, 16, 1, "%RETRY%G", 1),
        (15, 16, 0, "%RETRY%G", 18),
        (16, 16, 0, "%DLQ%G", 0),
        (0, 16, -1, "%DLQ%G", 0),
        (0, 0, 0, "%DLQ%G", 0),
    ],
)
def test_destination_of_a_message_that_was_sent_back(
    times: int, times_max: int, level: int, topic: str, delay: int
) -> None:
    retry = plan_retry("G", times, times_max, level)
    assert (retry.topic, retry.level) == (topic, delay)


class Rig:
    def __init__(
        self,
        store: MessageStore,
        *,
        group: GroupConfig | None = None,
        topics: FakeTopics | None = None,
        auto_create: bool = True,
        refuse: int = 0,
        **config: int,
    ) -> None:
        self.store, self.refuse = store, refuse
        self.topics = topics or FakeTopics()
        self.groups = FakeGroups(*([group] if group else ()), auto_create=auto_create)
        self.stats = BrokerStats(store.topics)
        self.processor = SendBackProcessor(
            store,
            self.topics,
            self.groups,
            self.put,
            IDENTITY,
            self.stats.sent_back,
            lambda: BrokerConfig(**config),
        )
        self.batches: list[Any] = []

    async def put(self, batch: PutBatch) -> None:
        if self.refuse:
            batch.refuse(0, self.refuse, "the disk is full")
        self.store.put(batch)
        self.batches.append(batch)

    async def send_back(self, offset: int, *, version: int = 479, **changes: int | str) -> Response:
        fields = {"offset": offset, "group": "G", "delayLevel": 0, "originTopic": "T"} | changes
        found = {name: str(value) for name, value in fields.items()}
        return await self.processor.send_back(Request(36, found, version=version))

    def stored(self) -> Record:
        return self.store.read_record(int(self.batches[-1].rows[0]["phys_offset"]))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    with open_store(tmp_path) as store:
        yield store


def test_a_retry_is_a_delayed_copy_with_an_incremented_count(
    run: Callable[..., Any], store: MessageStore
) -> None:
    rig = Rig(store, group=GroupConfig(name="G", retry_queues=1))
    properties = {"KEYS": "k", "TAGS": "TagB", "UNIQ_KEY": "u", "seq": "5"}
    row = put_one(store, "T", 2, b"hello", properties=properties, flag=7, sys_flag=0x301)
    response = run(rig.send_back(row["phys_offset"]))
    assert (response.code, response.fields) == (0, {})
    record = rig.stored()
    assert (record.topic, record.queue_id, record.body) == ("%RETRY%G", 0, b"hello")
    assert (record.flag, record.sys_flag, record.reconsume_times) == (7, 0x301, 1)
    assert record.properties == properties | {
        "RETRY_TOPIC": "T",
        "ORIGIN_MESSAGE_ID": "7F00000100002A9F0000000000000000",
        "WAIT": "false",
        "DELAY": "3",
    }
    assert rig.batches[0].rows[0]["delay_level"] == 3
    assert rig.batches[0].rows[0]["prop_flags"] & layout.PROP_WAIT_FALSE
    assert rig.topics.table["%RETRY%G"].read_queues == 1


def test_retries_keep_the_original_id_and_topic(
    run: Callable[..., Any], store: MessageStore
) -> None:
    rig = Rig(store)
    reported = {"RETRY_TOPIC": "T", "ORIGIN_MESSAGE_ID": "first"}
    row = put_one(store, "%RETRY%G", properties=reported, reconsume_times=2)
    run(rig.send_back(row["phys_offset"]))
    record = rig.stored()
    assert record.properties.items() >= (reported | {"DELAY": "5"}).items()
    assert record.reconsume_times == 3


@pytest.mark.parametrize(
    ("version", "reported_max", "topic"),
    [(479, 2, "%DLQ%G"), (120, 2, "%RETRY%G"), (479, 3, "%RETRY%G"), (479, "", "%RETRY%G")],
)
def test_the_client_sets_the_maximum_of_retries_since_3_4_9(
    run: Callable[..., Any], store: MessageStore, version: int, reported_max: int | str, topic: str
) -> None:
    rig = Rig(store)
    row = put_one(store, "T", reconsume_times=2)
    run(rig.send_back(row["phys_offset"], version=version, maxReconsumeTimes=reported_max))
    assert rig.stored().topic == topic


def test_a_dead_letter_is_not_delayed(run: Callable[..., Any], store: MessageStore) -> None:
    rig = Rig(store)
    row = put_one(store, "T")
    run(rig.send_back(row["phys_offset"], delayLevel=-1))
    record = rig.stored()
    assert (record.topic, record.queue_id, record.properties["DELAY"]) == ("%DLQ%G", 0, "0")
    assert rig.batches[0].rows[0]["delay_level"] == 0
    assert rig.topics.table["%DLQ%G"].perm == 6


@pytest.mark.parametrize(
    ("settings", "changes", "code"),
    [
        ({"auto_create": False}, {}, 26),
        ({"permission": 4}, {}, 16),
        ({"topics": FakeTopics(fake_topic("%RETRY%G", perm=4))}, {}, 16),
        ({}, {"offset": 999_999}, 1),
        ({}, {"offset": 3}, 1),
        ({"refuse": 14}, {}, 1),
        ({}, {"delayLevel": "x"}, 1),
    ],
)
def test_codes_of_refused_send_backs(
    run: Callable[..., Any],
    store: MessageStore,
    settings: dict[str, int | FakeTopics],
    changes: dict[str, int | str],
    code: int,
) -> None:
    rig = Rig(store, **settings)
    put_one(store, "T")
    with pytest.raises(RequestError) as refusal:
        run(rig.send_back(**({"offset": 0} | changes)))
    assert refusal.value.code == code


def test_a_send_back_without_retry_queues_has_no_effect(
    run: Callable[..., Any], store: MessageStore
) -> None:
    rig = Rig(store, group=GroupConfig(name="G", retry_queues=0))
    put_one(store, "T")
    assert run(rig.send_back(0)).code == 0
    assert rig.batches == []


@pytest.mark.parametrize(
    ("origin", "counted"), [("T", "T"), ("%RETRY%G", "%RETRY%G"), ("no such topic", "T"), ("", "T")]
)
def test_a_send_back_is_counted_under_an_existing_topic(
    run: Callable[..., Any], store: MessageStore, origin: str, counted: str
) -> None:
    """A client cannot add topics that do not exist to the statistics."""
    rig = Rig(
        store, group=GroupConfig(name="G", retry_queues=1), topics=FakeTopics(fake_topic("T"))
    )
    row = put_one(store, "T")
    run(rig.send_back(row["phys_offset"], originTopic=origin))
    assert rig.stats.windows("SNDBCK_PUT_NUMS", f"{counted}@G") is not None
    assert rig.stats.windows("SNDBCK_PUT_NUMS", f"{origin}@G") is None or origin == counted
