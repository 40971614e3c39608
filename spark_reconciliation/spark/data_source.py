"""`spark.read.format("rocketmq-store")`: the tables of store directories.

    option            meaning                                                     default
    path              store directory or URL; several are separated by commas
    table             messages, consume_queue, schedule, timer_log, timer_wheel,  messages
                      cursors, index, findings, stores, tallies
    topics            only these, separated by commas                             all
    fromMs, untilMs   only records stored in fromMs <= time < untilMs             all
    startOffset       only records at this log offset or after it                 0
    endOffset         only records before this log offset                         the log's end
    partitionBytes    bytes of the files that one task reads                      64 MiB
    checkBody         whether bodies are compared with their CRC (`damage`);      true
                      those of tallies always are
    timerPrecisionMs  of the store's timers                                       1000
    roles             only messages of these roles (numbers, see `tables`)        all
    lost              consume_queue: only units without a record, and             false
                      unreadable files
    buckets           number of tallies                                           64
    tickMs            of a stream: see `stream`                                   0

The schema is that of `tables`; with a schema of fewer columns, fewer columns are decoded. The log
is read up to its end at planning time. An unreadable range does not end a job: it is a row of
`messages` with a `damage` other than body-crc, and a row of `findings`.

As a stream (`spark.readStream`): see `stream`.

Spark evaluates the filters of a query on decoded rows; the options select records before.
"""

from __future__ import annotations

from pyspark.sql.datasource import DataSource, DataSourceStreamReader
from pyspark.sql.types import StructType

from duemq_common.errors import UsageError
from spark_reconciliation.scan.options import FORMAT, parse_options
from spark_reconciliation.scan.tables import TABLES, schema_of
from spark_reconciliation.spark.reader import SparkStoreReader
from spark_reconciliation.spark.stream import StoreStreamReader


class StoreSource(DataSource):
    """Data source. Spark creates a new one for each use."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format`."""
        return FORMAT

    def schema(self) -> str:
        """Return all columns of the table."""
        return schema_of(parse_options(self.options).table)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return a reader of the log as it grows.

        Raises:
            UsageError: The table is not `messages`, or as for `reader`.
        """
        options = parse_options(self.options)
        if options.table != "messages":
            raise UsageError(f"only the table messages can be streamed, not {options.table}")
        return StoreStreamReader(options, self.reader(schema))

    def reader(self, schema: StructType) -> SparkStoreReader:
        """Return a reader of the columns of `schema`.

        Raises:
            UsageError: A column does not exist, or has another type.
        """
        options = parse_options(self.options)
        kinds = dict(TABLES[options.table])
        for field in schema.fields:
            if kinds.get(field.name) != field.dataType.simpleString():
                column = f"{field.name} {field.dataType.simpleString()}"
                raise UsageError(
                    f"the table {options.table} has no column {column}: {schema_of(options.table)}"
                )
        return SparkStoreReader(options, [field.name for field in schema.fields])
