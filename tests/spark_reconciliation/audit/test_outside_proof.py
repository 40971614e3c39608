"""Outcomes of names that several messages have."""

from __future__ import annotations

from typing import Any

import pytest

from spark_reconciliation.audit.outside_proof import consumer_proof, producer_proof
from spark_reconciliation.engine import use_engine_of
from spark_reconciliation.spark.outside_tables import OutsideRows
from tests.spark_reconciliation.conftest import IN_TEST_ALL, session_of_each

engine = session_of_each(IN_TEST_ALL, "local")
MESSAGES = (
    "store string, root bigint, topic string, name string, store_ms bigint, accepted_ms bigint, "
    "due_ms bigint, delivered_ms bigint, verdict string"
)
Message = tuple[str, int, str, int, int | None, str]
"""Store, log offset, name, due time, time of the delivery, verdict."""


def messages_of(engine: Any, *messages: Message) -> Any:
    rows = [
        (store, root, "T", name, 0, due_ms, due_ms, delivered_ms, verdict)
        for store, root, name, due_ms, delivered_ms, verdict in messages
    ]
    return engine.createDataFrame(rows, MESSAGES)


def table_of(engine: Any, *rows: tuple[str, int]) -> OutsideRows:
    frame = engine.createDataFrame(
        [("T", name, time_ms) for name, time_ms in rows],
        "topic string, name string, time_ms bigint",
    )
    times = [time_ms for _, time_ms in rows]
    return OutsideRows(frame, True, min(times), max(times), 0)


def records_of(engine: Any, *names: str) -> Any:
    """Return a lookup of records in the topic."""
    rows = [("T", name) for name in names]
    return lambda topics: engine.createDataFrame(rows, "topic string, name string")


def proved(engine: Any, messages: Any, sent: OutsideRows, **options: Any) -> dict[str, str]:
    """Return the outcome of each name of a producer."""
    given = {"tolerance_ms": 0, "oldest_ms": None, "read_ms": 1_000_000} | options
    proof = producer_proof(messages, sent, records_of(engine), **given)
    return {row["name"]: row["outcome"] for row in proof.collect()}


def consumed(
    engine: Any, messages: Any, received: OutsideRows, *names: str, oldest_ms: int | None = None
) -> dict[str, str]:
    """Return the outcome of each name of a consumer; the topic has records with some names."""
    lookup = records_of(engine, *names)
    proof = consumer_proof(messages, received, lookup, None, oldest_ms=oldest_ms)
    return {row["name"]: row["outcome"] for row in proof.collect()}


def test_messages_at_the_same_offset_of_two_brokers_are_two(engine: Any) -> None:
    messages = messages_of(
        engine,
        ("a", 0, "sale", 5_000, 5_001, "ok"),
        ("b", 0, "sale", 6_000, 6_001, "ok"),
        ("a", 99, "retried", 7_000, 7_001, "ok"),
        ("b", 99, "retried", 7_000, 7_001, "ok"),
    )
    sent = table_of(engine, ("sale", 5_000), ("sale", 6_000), ("retried", 7_000))
    assert proved(engine, messages, sent) == {"sale": "ok", "retried": "accepted_twice"}
    received = table_of(engine, *[("sale", 6_500), ("retried", 7_500)] * 2)
    assert set(consumed(engine, messages, received).values()) == {"consumed"}


@pytest.mark.parametrize(
    ("delivered_ms", "received", "outcome"),
    [
        ((10, 20, 91), 2, "not_yet"),
        ((10, 20, 91), 1, "not_consumed"),
        ((10, 20, 30), 2, "not_consumed"),
        ((91, 92, 93), 0, "not_yet"),
        ((10, 20, 91), 3, "consumed"),
    ],
)
def test_of_a_name_only_the_newest_messages_may_be_on_their_way(
    engine: Any, delivered_ms: tuple[int, ...], received: int, outcome: str
) -> None:
    messages = messages_of(
        engine, *(("a", root, "sale", 5, ms, "ok") for root, ms in enumerate(delivered_ms))
    )
    rows = [("other", 90), *[("sale", 50)] * received]
    outcomes = consumed(engine, messages, table_of(engine, *rows))
    assert outcomes == {"sale": outcome, "other": "unknown_to_broker"}


@pytest.mark.spark
@pytest.mark.extended
def test_a_message_without_a_row_is_unknown_outside_of_ansi_mode(spark: Any) -> None:
    ansi = "spark.sql.ansi.enabled"
    before = spark.conf.get(ansi)
    spark.conf.set(ansi, "false")
    try:
        with use_engine_of(spark):
            messages = messages_of(spark, ("a", 0, "A", 50, None, "ok"))
            outcomes = proved(spark, messages, table_of(spark, ("B", 40), ("C", 60)))
    finally:
        spark.conf.set(ansi, before)
    never = dict.fromkeys("BC", "never_accepted")
    assert outcomes == {"A": "unknown_to_producer", **never}


@pytest.mark.parametrize(
    ("promised", "verdicts", "cancelled", "outcome"),
    [
        ((500,), (), 0, "before_store"),
        ((500, 600), (), 0, "before_store"),
        ((500, 5_000), (), 0, "never_accepted"),
        ((500, 5_000), ("ok",), 0, "ok"),
        ((500, 5_000), ("lost",), 0, "lost"),
        ((500, 5_000, 6_000), ("ok",), 0, "never_accepted"),
        ((5_000,), (), 1, "cancelled"),
        ((500, 5_000), (), 1, "cancelled"),
        ((5_000, 6_000), (), 2, "cancelled"),
        ((5_000, 6_000), (), 1, "never_accepted"),
    ],
)
def test_retention_explains_no_more_messages_than_it_may_have_removed(
    engine: Any, promised: tuple[int, ...], verdicts: tuple[str, ...], cancelled: int, outcome: str
) -> None:
    """The oldest record is of the time 1000; the last messages of the name are in the store."""
    times = promised[len(promised) - len(verdicts) :]
    rows = [("a", number, "K", ms, None, verdicts[number]) for number, ms in enumerate(times)]
    marks = [("T", "K", f"U{number}") for number in range(cancelled) for _ in range(2)]
    markers = engine.createDataFrame(marks, "topic string, name string, unique_id string")
    messages = messages_of(engine, *rows, ("a", 99, "other", 9_000, None, "ok"))
    sent = table_of(engine, *(("K", ms) for ms in promised))
    outcomes = proved(engine, messages, sent, cancelled=markers, oldest_ms=1_000)
    assert outcomes["K"] == outcome


@pytest.mark.parametrize(
    ("delivered_ms", "received_ms", "outcome"),
    [
        ((), (500,), "before_store"),
        ((), (500, 600), "before_store"),
        ((), (500, 1_500), "unknown_to_broker"),
        ((1_200,), (500, 1_300), "consumed"),
        ((1_200,), (500, 1_300, 1_400), "consumed_twice"),
        ((1_200,), (500,), "consumed_early"),
        ((1_200, 1_250), (500, 1_300, 1_300), "consumed"),
        ((800,), (810, 820), "consumed_twice"),
    ],
)
def test_a_row_from_before_the_oldest_record_may_be_of_a_removed_message(
    engine: Any, delivered_ms: tuple[int, ...], received_ms: tuple[int, ...], outcome: str
) -> None:
    """The oldest record of a truncated store is of the time 1000; another store has older ones."""
    rows = [("a", root, "K", ms - 10, ms, "ok") for root, ms in enumerate(delivered_ms)]
    received = table_of(engine, ("other", 9_000), *(("K", ms) for ms in received_ms))
    outcomes = consumed(engine, messages_of(engine, *rows), received, oldest_ms=1_000)
    assert outcomes["K"] == outcome


def test_a_received_message_without_a_delay_is_known_to_the_broker(engine: Any) -> None:
    messages = messages_of(
        engine, ("a", 0, "timer", 40, 50, "ok"), ("a", 9, "soon", 90, None, "ok")
    )
    received = table_of(engine, ("timer", 60), ("plain", 60), ("soon", 60), ("strange", 60))
    assert consumed(engine, messages, received, "timer", "plain", "plain") == {
        "timer": "consumed",
        "plain": "without_delay",
        "soon": "unknown_to_broker",
        "strange": "unknown_to_broker",
    }


@pytest.mark.parametrize(
    ("verdicts", "due_ms", "outcome"),
    [
        (("cancelled", "ok"), 5_000, "ok"),
        (("cancelled", "pending"), 5_000, "pending"),
        (("cancelled", "cancelled", "lost"), 5_000, "lost"),
        (("cancelled", "ok"), 6_000, "accepted_with_other_time"),
        (("cancelled", "ok", "ok"), 5_000, "accepted_twice"),
        (("cancelled", "cancelled"), 5_000, "cancelled"),
    ],
)
def test_a_transferred_message_is_cancelled_at_its_source(
    engine: Any, verdicts: tuple[str, ...], due_ms: int, outcome: str
) -> None:
    rows = [
        (store, 7, "K", 5_000 if verdict == "cancelled" else due_ms, None, verdict)
        for store, verdict in zip("abc", verdicts, strict=False)
    ]
    outcomes = proved(engine, messages_of(engine, *rows), table_of(engine, ("K", 5_000)))
    assert outcomes == {"K": outcome}
