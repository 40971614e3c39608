"""Tables of a store: declaration of their columns, and record batches.

A type is both Spark's (in a schema) and Arrow's (in a batch). Times are ms since the epoch, offsets
are bytes from the start of the log; values that a record lacks are null.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

Columns = tuple[tuple[str, str], ...]

MESSAGES: Final[Columns] = (
    ("store", "string"),  # path or name of the store
    ("phys_offset", "bigint"),
    ("record_size", "int"),  # size of the record, or of bytes that are not a record
    ("topic", "string"),
    ("queue_id", "int"),
    ("queue_offset", "bigint"),
    ("store_ms", "bigint"),
    ("born_ms", "bigint"),
    ("flag", "int"),
    ("sys_flag", "int"),
    ("reconsume_times", "int"),
    ("prepared_offset", "bigint"),  # -(offset + 1) of the origin: docs/decisions/0002
    ("body_crc", "int"),  # CRC in the record
    ("body_len", "int"),
    ("damage", "string"),  # null; body-crc; gap, unreadable, seam: a place in the log, no record
    ("unique_id", "string"),  # UNIQ_KEY; the next columns are properties as well
    ("keys", "string"),
    ("tags", "string"),
    ("real_topic", "string"),
    ("real_queue_id", "bigint"),
    ("level", "bigint"),  # DELAY, or DELAy
    ("due_ms", "bigint"),  # by TIMER_* and DUEMQ_DUE_MS; null for a level message: see `schedule`
    ("out_ms", "bigint"),
    ("rolls", "bigint"),
    ("cancels", "string"),  # TIMER_DEL_UNIQKEY
    ("properties_hash", "bigint"),  # of the properties that brokers do not change, in any order
    ("head_hash", "bigint"),  # of flag, sys_flag, born_ms, producer's address, reconsume_times
    ("property_text", "binary"),
    ("body", "binary"),
    # Numbers that the audit joins on; hashes have 64 bits.
    ("store_id", "int"),  # index of the store among the paths
    ("role", "int"),  # role of the record in an audit: a value of `Role`
    ("topic_hash", "bigint"),  # hash of real_topic for a pending message, of topic for others
    ("target", "bigint"),  # hash of that topic and the queue; null: no target
    ("identity", "bigint"),  # hash of the fields that brokers copy from record to record; a sum
    ("name_hash", "bigint"),  # hash of real_topic+unique_id; of a marker's target
    ("unit_ms", "bigint"),  # due time in the unit of a level message
    ("passed", "int"),  # 1: the owner has passed the due time; 0: not yet; null: unknown
    ("other_time", "boolean"),  # the time in a level message's unit is not one of its level
    ("queued", "boolean"),  # the unit in its queue agrees with the record; null: not checked
    ("file", "string"),  # path of the file, for unreadable ranges and clock steps
    ("file_offset", "bigint"),
    ("note", "string"),  # reason, for the same rows
)
CONSUME_QUEUE: Final[Columns] = (
    ("store", "string"),
    ("topic", "string"),
    ("queue_id", "int"),
    ("queue_offset", "bigint"),
    ("phys_offset", "bigint"),
    ("record_size", "int"),
    ("tags_code", "bigint"),
    ("store_id", "int"),
    ("fault", "string"),  # why the unit does not agree with the record at phys_offset, or null
    ("damage", "string"),  # unreadable: the row is for a file, from queue_offset on
)
SCHEDULE: Final[Columns] = (
    ("store", "string"),
    ("level", "int"),
    ("queue_offset", "bigint"),
    ("phys_offset", "bigint"),
    ("record_size", "int"),
    ("due_ms", "bigint"),
)
TIMER_LOG: Final[Columns] = (
    ("store", "string"),
    ("pos", "bigint"),
    ("prev_pos", "bigint"),
    ("magic", "int"),  # bits: 1, 2 rolls, 4 cancels
    ("write_ms", "bigint"),
    ("slot_ms", "bigint"),
    ("phys_offset", "bigint"),
    ("record_size", "int"),
    ("topic_hash", "int"),
    ("due_ms", "bigint"),  # only in DueMQ's units, else 0; below 0: settled before its due time
)
TIMER_WHEEL: Final[Columns] = (
    ("store", "string"),
    ("slot", "int"),
    ("tick", "bigint"),
    ("first_pos", "bigint"),
    ("last_pos", "bigint"),
    ("num", "int"),
)
CURSORS: Final[Columns] = (
    ("store", "string"),
    ("kind", "string"),  # level, consumer, timer
    ("name", "string"),  # level: its number; consumer: topic@group; timer: the field's name
    ("queue_id", "int"),
    ("value", "bigint"),
)
INDEX: Final[Columns] = (
    ("store", "string"),
    ("file", "string"),
    ("item", "int"),
    ("key_hash", "int"),
    ("phys_offset", "bigint"),
    ("store_ms", "bigint"),  # to the second
)
FINDINGS: Final[Columns] = (
    ("store", "string"),
    ("file", "string"),
    ("offset", "bigint"),  # position in the file
    ("size", "bigint"),  # unreadable or malformed bytes
    ("kind", "string"),  # gap, unreadable, seam, cut, missing-file, stray-file, file-size, clock
    ("text", "string"),
)
STORES: Final[Columns] = (
    ("store_id", "int"),
    ("store", "string"),
    ("log_min", "bigint"),  # first log offset, and end of the log
    ("log_end", "bigint"),
    ("last_ms", "bigint"),  # store time of the last record, or slot of the timers if that is later
    ("log_ms", "bigint"),  # store time of the last record
)
TALLIES: Final[Columns] = (  # pending messages and deliveries, packed: see `plain_sums`
    ("bucket", "int"),
    ("packed", "binary"),
)
TABLES: Final[Mapping[str, Columns]] = {
    "messages": MESSAGES,
    "consume_queue": CONSUME_QUEUE,
    "schedule": SCHEDULE,
    "timer_log": TIMER_LOG,
    "timer_wheel": TIMER_WHEEL,
    "cursors": CURSORS,
    "index": INDEX,
    "findings": FINDINGS,
    "stores": STORES,
    "tallies": TALLIES,
}

CLOCK_SET_BACK: Final = "clock"  # kind of a finding and value of damage, for a readable place
TIME_MIN: Final = 1 << 31  # a tags code with fewer bits is the hash of a tag, not a time
ARROW: Final = {
    "string": pa.string(),
    "binary": pa.binary(),
    "bigint": pa.int64(),
    "int": pa.int32(),
    "boolean": pa.bool_(),
}


def schema_of(table: str, columns: Sequence[str] = ()) -> str:
    """Return the schema of some columns of a table, all by default, in Spark's notation."""
    kinds = dict(TABLES[table])
    return ", ".join(f"{name} {kinds[name]}" for name in columns or kinds)


def arrow_schema(table: str, columns: Sequence[str]) -> pa.Schema:
    """Return the Arrow schema of some columns of a table."""
    kinds = dict(TABLES[table])
    return pa.schema([(name, ARROW[kinds[name]]) for name in columns])


def batch_of_rows(schema: pa.Schema, rows: Iterable[Mapping[str, object]]) -> pa.RecordBatch:
    """Return rows as a batch; missing columns are null, columns outside the schema are dropped."""
    return pa.RecordBatch.from_pylist(
        [{name: row.get(name) for name in schema.names} for row in rows], schema
    )


def batch_of_columns(schema: pa.Schema, columns: Mapping[str, object]) -> pa.RecordBatch:
    """Return columns as a batch: arrays, or one value for all rows; others are null."""
    count = next(column.size for column in columns.values() if isinstance(column, np.ndarray))
    arrays = []
    for field in schema:
        column = columns.get(field.name)
        if isinstance(column, np.ndarray):
            native = np.ascontiguousarray(column, field.type.to_pandas_dtype())
            arrays.append(pa.array(native, field.type))
        else:
            arrays.append(pa.repeat(pa.scalar(column, field.type), count))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
