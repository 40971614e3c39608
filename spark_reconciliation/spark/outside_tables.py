"""Tables of producers and consumers: what they have sent or received, by their own records.

    location                   read as
    *.csv                      CSV with a header
    *.json, *.jsonl, *.ndjson  JSON Lines
    jdbc:...#TABLE             table of a database, see `database`
    other paths and URLs       Parquet

Only Spark reads databases, and files of more than `choice.LOCAL_BYTES_MAX`.

Column names are mapped by `id=order_no,topic=channel,time=due_at`. A message is named by its unique
id (`id`) or by one of its keys (`key`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from zoneinfo import available_timezones

from duemq_common.errors import UsageError
from spark_reconciliation.engine import F
from spark_reconciliation.local import files
from spark_reconciliation.local.choice import LOCAL_BYTES_MAX
from spark_reconciliation.local.frame import LocalSession
from spark_reconciliation.spark.database import (
    JDBC,
    database_errors,
    read_database,
    without_secrets,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

CSV: Final = (".csv", ".csv.gz")
JSON_LINES: Final = (".json", ".jsonl", ".ndjson", ".json.gz", ".jsonl.gz", ".ndjson.gz")
NAMES: Final = ("id", "key")
FIELDS: Final = (*NAMES, "topic", "time")
DATE: Final = r"^\d+-\d\d?-\d\d?"  # DuckDB has words for some times
LOCAL: Final = rf"{DATE}([T ]\d\d?(:\d\d?){{0,2}}(\.\d*)?)?$"
"""Time without an offset. Of others, a cast to a local time ignores what follows."""
VALID_OFFSET: Final = rf"{DATE}[T ].*(Z|[+-](0\d|1[0-8])(:?[0-5]\d)?)$"  # DuckDB accepts +99:00
LATEST_SECONDS: Final = 100_000_000_000  # a smaller number is a time in seconds, not in ms
NO_ROWS: Final = "it has no row with a time: a comparison would find nothing"
NUMBERS: Final = re.compile(r"(tinyint|smallint|int|bigint|decimal\(\d+,\d+\))$")
FRACTIONS: Final = re.compile(r"(float|double|decimal\(\d+,[1-9]\d*\))$")
TIMES: Final = ("timestamp", "date", "string")  # beginnings of types
FIRST_MS, END_MS = -62_135_510_400_000, 253_402_214_400_000
"""Times, but the first and the last day of years 1 to 9999: Spark's infinities of PostgreSQL."""


@dataclass(frozen=True, slots=True)
class OutsideTable:
    """Table of a producer or a consumer.

    Attributes:
        location: Path or URL.
        columns: Names of its columns, by `FIELDS`.
        zone: Time zone of times without an offset; empty: they are refused.
        password: Password for a database; empty: none, or the driver knows it.
    """

    location: str
    columns: Mapping[str, str] = field(default_factory=dict)
    zone: str = ""
    password: str = field(default="", repr=False)

    @classmethod
    def parse(cls, location: str, columns: str, zone: str, password: str = "") -> OutsideTable:
        """Return a table that a command line names.

        Args:
            columns: `field=column,...`; missing fields have columns of their name.
        Raises:
            UsageError: A field or the zone does not exist, both `id` and `key` are given, or the
                location has a password.
        """
        if location.startswith(JDBC) and without_secrets(location) != location:
            text = "other users see the password in the process list: set DUEMQ_SENT_PASSWORD or"
            raise UsageError(f"{without_secrets(location)}: {text} DUEMQ_RECEIVED_PASSWORD")
        pairs = [pair.partition("=") for pair in columns.split(",") if pair.strip()]
        names = {name.strip(): column.strip() for name, _, column in pairs}
        for name, column in names.items():
            if name not in FIELDS or not column:
                text = f"{name}={column}: give FIELD=COLUMN, with a field of {', '.join(FIELDS)}"
                raise UsageError(text)
        if all(name in names for name in NAMES):
            raise UsageError(f"{columns}: give either id or key")
        if zone and zone not in available_timezones():
            raise UsageError(f"there is no time zone {zone}: give a name such as Europe/Berlin")
        return cls(location, names, zone, password)

    @property
    def needs_spark(self) -> bool:
        """Whether the local engine cannot read the table.

        Raises:
            OSError: There is no such file.
            UsageError: It is a table with versions.
        """
        return self.location.startswith(JDBC) or files.file_bytes(self.location) > LOCAL_BYTES_MAX

    @property
    def shown(self) -> str:
        """Location without passwords, for error texts."""
        return without_secrets(self.location)


@dataclass(frozen=True, slots=True)
class OutsideRows:
    """Rows of a table, as of one time if it is one of a database.

    Attributes:
        frame: topic, name, time_ms.
        by_key: Whether `name` is a key, not a unique id.
        first_ms, last_ms: Range of the times; None without rows.
        skipped: Number of rows without a time.
    """

    frame: DataFrame
    by_key: bool
    first_ms: int | None
    last_ms: int | None
    skipped: int
    cached: DataFrame | None = None

    def release(self) -> None:
        """Free the rows of a database, which Spark keeps until then."""
        if self.cached is not None:
            self.cached.unpersist()


def read_outside(spark: SparkSession, table: OutsideTable) -> OutsideRows:
    """Read and check a table; an action.

    Raises:
        UsageError: A column is missing, no row has a time, a row has no name or topic, or a time is
            malformed, has no offset and no zone, or is in seconds. The text has the number of rows,
            and a value. Or a database cannot be read; the text has its reason.
        pyspark.errors.PySparkException: Files cannot be read.
    """
    if table.location.startswith(JDBC):
        with database_errors(table.location, table.password):
            return _read(table, read_database(spark, table.location, table.password))
    return _read(table, _load(spark, table))


def _read(table: OutsideTable, frame: DataFrame) -> OutsideRows:
    columns = _columns(frame.columns, table)
    name_field = next(name for name in NAMES if name in columns)
    given, kinds = _column(columns["time"]), dict(frame.dtypes)
    kind, name_kind = kinds[columns["time"]], kinds[columns[name_field]]
    text = given.cast("string")
    if not kind.startswith(TIMES) and not NUMBERS.match(kind):
        reason = "give a timestamp, a text, or a whole number of ms"
        raise UsageError(f"{table.shown}: the column {columns['time']} has type {kind}: {reason}")
    if FRACTIONS.match(name_kind):
        reason = f"type {name_kind}, whose text is no key: give a text or a whole number"
        raise UsageError(f"{table.shown}: the column {columns[name_field]} has {reason}")
    time_ms = _time_ms(columns["time"], kind, table)
    rows = frame.select(
        _column(columns["topic"]).cast("string").alias("topic"),
        _column(columns[name_field]).cast("string").alias("name"),
        F.when((time_ms >= FIRST_MS) & (time_ms < END_MS), time_ms).alias("time_ms"),
        F.when(F.trim(text) != "", text).alias("text"),
    )
    cached = rows.persist() if table.location.startswith(JDBC) else None
    unnamed = F.coalesce(F.trim("name"), F.lit("")) == ""
    unnamed |= F.coalesce(F.trim("topic"), F.lit("")) == ""
    malformed = F.col("text").isNotNull() & F.col("time_ms").isNull()
    facts = rows.agg(
        F.count_if(unnamed).alias("unnamed"),
        F.count_if(malformed).alias("malformed"),
        F.first(F.when(malformed, F.col("text")), ignorenulls=True).alias("value"),
        F.count_if(F.col("text").isNull()).alias("skipped"),
        F.min("time_ms").alias("first_ms"),
        F.max("time_ms").alias("last_ms"),
    ).collect()[0]
    _check(facts.asDict(), columns, table)
    frame = rows.where(F.col("time_ms").isNotNull()).select("topic", "name", "time_ms")
    by_key = name_field == "key"
    times = (facts["first_ms"], facts["last_ms"])
    return OutsideRows(frame, by_key, *times, facts["skipped"], cached)


def _column(name: str) -> Column:
    """Return a column by its whole name: a dot would separate the fields of structs."""
    return F.col("`" + name.replace("`", "``") + "`")


def _check(facts: Mapping[str, int], columns: Mapping[str, str], table: OutsideTable) -> None:
    if facts["unnamed"]:
        names = f"{columns.get('id', columns.get('key'))} and {columns['topic']}"
        raise UsageError(f"{table.shown}: {facts['unnamed']} rows lack a value of {names}")
    if facts["malformed"]:
        reason = "give --zone, or times with an offset such as 2026-11-28T09:00:00Z"
        if table.zone or str(facts["value"]).isdigit():
            reason = "give ISO 8601 or ms since the epoch"
        text = f"rows without a valid time in {columns['time']}: {facts['malformed']}, for example"
        raise UsageError(f"{table.shown}: {text} {facts['value']!r}: {reason}")
    if facts["last_ms"] is None:
        raise UsageError(f"{table.shown}: {NO_ROWS}")
    if 0 <= facts["last_ms"] < LATEST_SECONDS:
        text = f"the times in {columns['time']} end in 1973: give ms since the epoch, not seconds"
        raise UsageError(f"{table.shown}: {text}")


def _load(spark: SparkSession, table: OutsideTable) -> DataFrame:
    """Return the rows of files."""
    location = table.location
    path, kind = location.rstrip("/"), files.PARQUET
    if path.endswith(CSV):
        kind = files.CSV
    elif path.endswith(JSON_LINES):
        kind = files.JSON_LINES
    if isinstance(spark, LocalSession):

        def choose(names: Sequence[str]) -> list[str]:
            return list(dict.fromkeys(_columns(names, table).values()))

        return spark.of_table(files.read_files(path, kind, choose))
    reader = spark.read.format(kind)
    if kind == files.CSV:
        reader = reader.options(header=True, escape='"')  # by default, it is a backslash
    return reader.load(location)


def _columns(given_names: Sequence[str], table: OutsideTable) -> dict[str, str]:
    """Return the column of each field.

    Raises:
        UsageError: A column is missing.
    """
    if not given_names:
        raise UsageError(f"{table.shown}: {NO_ROWS}")
    columns = {name: table.columns.get(name, name) for name in ("topic", "time")}
    given = next((name for name in NAMES if name in table.columns), None)
    name = given or next((name for name in NAMES if name in given_names), "id")
    columns[name] = table.columns.get(name, name)
    missing = [f"{name}={column}" for name, column in columns.items() if column not in given_names]
    if missing:
        text = f"there is no column for {', '.join(missing)}; it has {', '.join(given_names)}"
        remedy = "Name its columns with --sent-columns or --received-columns: FIELD=COLUMN,..."
        raise UsageError(f"{table.shown}: {text}. {remedy}")
    return columns


def _time_ms(name: str, kind: str, table: OutsideTable) -> Column:
    """Return a time in ms since the epoch; null: not a time, or without offset and zone."""
    column = _column(name)
    if NUMBERS.match(kind):
        return column.try_cast("bigint")
    if kind == "timestamp":
        return F.unix_millis(column)
    local = column.try_cast("timestamp_ntz")
    zoned = F.lit(None).cast("bigint")
    if table.zone:  # the session's zone is UTC
        zoned = F.unix_millis(F.to_utc_timestamp(local.cast("timestamp"), table.zone))
    if kind != "string":
        return zoned
    text = F.trim(column)
    instant, number = F.unix_millis(column.try_cast("timestamp")), column.try_cast("bigint")
    dated = F.when(text.rlike(LOCAL), zoned).when(text.rlike(VALID_OFFSET), instant)
    return F.when(text.rlike(r"^-?\d+$"), number).otherwise(dated)
