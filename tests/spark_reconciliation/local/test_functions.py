"""Functions that rules and jobs use have the same results on both engines."""

from __future__ import annotations

from typing import Any

import pytest

from spark_reconciliation.engine import F, Window
from tests.spark_reconciliation.conftest import ON_SPARK, session_of_each

NUMBERS = [(1, 5, "a"), (1, None, "b"), (2, -7, None), (2, 9, "a"), (3, None, None)]
SCHEMA = "key bigint, value bigint, name string"
engine = session_of_each(ON_SPARK, "local")


@pytest.fixture(scope="module")
def rows(engine: Any) -> Any:
    return engine.createDataFrame(NUMBERS, SCHEMA)


def values(frame: Any, name: str = "it") -> list[Any]:
    return [row[name] for row in frame.orderBy("key", "value").select(name).collect()]


def results(rows: Any, columns: dict[str, Any]) -> dict[str, list[Any]]:
    """Return the values of columns, computed by one query."""
    found = rows.withColumns(columns).orderBy("key", "value").collect()
    return {name: [row[name] for row in found] for name in columns}


def test_numbers(rows: Any) -> None:
    value = F.col("value")
    expected = {
        "greatest": (F.greatest("value", F.lit(0)), [0, 5, 0, 9, 0]),
        "least": (F.least("value", F.lit(0)), [0, 0, -7, 0, 0]),
        "floor": (F.floor(value / 2), [None, 2, -4, 4, None]),
        "ceil": (F.ceil(value / 2), [None, 3, -3, 5, None]),
        "log2": (F.floor(F.log2(value - 5)), [None, None, None, 2, None]),
        "pmod": (F.pmod("value", F.lit(4)), [None, 1, 1, 1, None]),
        "not": (F.bitwise_not("value"), [None, -6, 6, -10, None]),
        "left": (F.shiftleft("value", 33), [None, 5 << 33, -7 << 33, 9 << 33, None]),
        "right": (F.shiftright("value", 1), [None, 2, -4, 4, None]),
        "unsigned": (F.shiftrightunsigned("value", 32), [None, 0, (1 << 32) - 1, 0, None]),
        "xor": (value.bitwiseXOR(F.lit(3)), [None, 6, -6, 10, None]),
        "same": (value.eqNullSafe(F.lit(None).cast("bigint")), [True, False, False, False, True]),
        "between": (value.between(5, 9), [None, True, False, True, None]),
        "among": (value.isin(5, -7), [None, True, True, False, None]),
        "case": (
            F.when(value > 6, "high").when(value < 0, "low"),
            [None, None, "low", "high", None],
        ),
    }
    columns = {name: column for name, (column, _) in expected.items()}
    assert results(rows, columns) == {name: result for name, (_, result) in expected.items()}


def test_arrays(rows: Any) -> None:
    names = F.array(F.lit("b"), F.lit("a"))
    expected = {
        "position": (F.array_position(names, F.col("name")), [1, 2, None, 2, None]),
        "first": (F.element_at(names, 1), ["b"] * 5),
        "sorted": (F.element_at(F.array_sort(names), 1), ["a"] * 5),
        "none": (F.try_element_at(names, F.lit(3)), [None] * 5),
        "size": (F.size(names), [2] * 5),
        "overlap": (F.arrays_overlap(names, F.array(F.lit("a"))), [True] * 5),
        "split": (F.element_at(F.split(F.lit("x  y"), " "), 3), ["y"] * 5),
        "text": (F.concat(F.lit("n"), F.col("value")), [None, "n5", "n-7", "n9", None]),
    }
    columns = {name: column for name, (column, _) in expected.items()}
    assert results(rows, columns) == {name: result for name, (_, result) in expected.items()}
    sums = F.aggregate(
        F.transform(
            F.filter(F.array("key", "value"), lambda item: item > 1), lambda item: item * 2
        ),
        F.lit(0).cast("bigint"),
        lambda total, item: total + item,
    )
    assert values(rows.withColumn("it", sums)) == [0, 10, 4, 22, 6]
    pairs = F.zip_with(F.array("key"), F.array("value"), lambda left, right: left - right)
    assert values(rows.withColumn("it", F.array_max(pairs))) == [None, -4, 9, -7, None]
    named = rows.select("key", "value", F.explode_outer(F.split("name", "x")).alias("it"))
    assert values(named) == ["b", "a", None, "a", None]


def test_groups(rows: Any) -> None:
    parts = rows.groupBy("key").agg(
        F.count("*").alias("rows"),
        F.count(F.col("value")).alias("values"),
        F.count_if(F.col("value") > 6).alias("high"),
        F.sum("value").alias("sum"),
        F.bit_xor("value").alias("xor"),
        F.size(F.collect_set("name")).alias("names"),
        F.size(F.collect_list("value")).alias("list"),
        F.min_by("name", "value").alias("lowest"),
        F.max(F.struct(F.coalesce("value", F.lit(-99)).alias("value"), "name")).alias("greatest"),
        F.percentile_approx("value", 0.5).alias("middle"),
    )
    found = [
        tuple(row.asDict().values()) for row in parts.drop("greatest").orderBy("key").collect()
    ]
    assert found == [
        (1, 2, 1, 0, 5, 5, 2, 1, "a", 5),
        (2, 2, 2, 1, 2, -7 ^ 9, 1, 2, None, -7),
        (3, 1, 0, 0, None, None, 0, 0, None, None),
    ]
    names = parts.withColumn("it", F.col("greatest.name")).orderBy("key").collect()
    assert [row["it"] for row in names][:2] == ["a", "a"]


def test_windows_and_orders(rows: Any) -> None:
    same = Window.partitionBy("key")
    number = F.row_number().over(same.orderBy("value"))
    assert values(rows.withColumn("it", number)) == [1, 2, 1, 2, 1], "null is first"
    total = F.sum("value").over(same.orderBy("value"))
    assert values(rows.withColumn("it", total)) == [None, 5, -7, 2, None]
    latest = rows.orderBy(F.col("value").desc(), "name").drop("key").limit(3).collect()
    assert [row["value"] for row in latest] == [9, 5, -7]


def test_frames(engine: Any, rows: Any) -> None:
    names = engine.createDataFrame([(1, "one"), (4, "four")], "key bigint, title string")
    joined = {
        how: sorted(
            ((r["key"], r["title"]) for r in rows.join(names, "key", how).collect()), key=str
        )
        for how in ("inner", "left", "full")
    }
    assert joined["inner"] == [(1, "one")] * 2
    assert joined["left"] == [(1, "one")] * 2 + [(2, None)] * 2 + [(3, None)]
    assert joined["full"] == [*joined["left"], (4, "four")]
    assert rows.join(names, "key", "left_anti").count() == 3
    both = rows.unionByName(names, allowMissingColumns=True)
    assert both.columns == ["key", "value", "name", "title"]
    assert both.where("title is not null").count() == 2
    assert rows.select("key").distinct().count() == 3
    assert rows.dropDuplicates(["key"]).count() == 3
    assert rows.where(F.col("key") > 3).isEmpty()
    kept = rows.withColumn("key", F.col("key") + 1).persist()
    assert values(kept, "key") == [2, 2, 3, 3, 4]
    kept.unpersist()


def test_of_an_hour_that_occurs_twice_the_first_is_taken(engine: Any) -> None:
    times = {
        "2026-10-25 02:30:00": 1_792_888_200_000,
        "2026-10-25 03:00:00": 1_792_893_600_000,
        "2026-03-29 02:30:00": 1_774_747_800_000,  # does not exist
        "2026-07-01 12:00:00": 1_782_900_000_000,
    }
    frame = engine.createDataFrame(list(times.items()), "t string, ms bigint")
    local = F.col("t").try_cast("timestamp_ntz").cast("timestamp")
    made = frame.withColumn("it", F.unix_millis(F.to_utc_timestamp(local, "Europe/Berlin")))
    assert [row["it"] - row["ms"] for row in made.collect()] == [0] * len(times)
