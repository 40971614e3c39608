"""Audits of logs of many small files: `python -m benchmarks.many_files 100000 /data/bench`, JSON.

The store has level messages and their deliveries, ten records in each log file of 4 KiB. The audit
with each engine, an incremental audit and an export are measured with a hundredth, a tenth, and all
of the files. Each is a process.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.loads.reconciliation import run_child
from benchmarks.machine import describe
from duemq_common.topics import SCHEDULE_TOPIC
from message_store.layout import (
    BLANK_RECORD,
    CHECKPOINT_BYTES,
    CQ_UNIT,
    MAGIC_BLANK,
    RECORD_HEAD,
    packer,
)
from message_store.log.properties import encode_properties
from message_store.log.record import Record, encode_record
from spark_reconciliation.local.choice import LOCAL_ENGINE, SPARK_ENGINE

FILE_BYTES = 4_096
PAIRS = 5  # messages of a file, each with its delivery
DELAY_MS = 1_000  # level 1
STEP_MS = 2 * DELAY_MS  # from file to file
START_MS = 1_700_000_000_000
HOST = (b"\x7f\0\0\1", 10_911)
QUEUE_FILE_BYTES = 6_000_000
BLOCK = 1_000
SHARES = (100, 10, 1)
Numbers = npt.NDArray[np.int64]


def main(files: int, folder: Path) -> None:
    """Print the results for a number of log files."""
    results = {}
    for count in (files // share for share in SHARES):
        store = fill_files(folder / f"store-{count}", count)
        audit = ("run", str(store), "--ledger", "none", "--json")
        commands = {
            LOCAL_ENGINE: (*audit, "--engine", LOCAL_ENGINE),
            SPARK_ENGINE: (*audit, "--engine", SPARK_ENGINE),
            "with state": (*audit, "--state", str(folder / f"state-{count}")),
            "unchanged": (*audit, "--state", str(folder / f"state-{count}")),
            "export": ("export", str(store), "--to", str(folder / f"tables-{count}")),
        }
        for name, words in commands.items():
            command = [sys.executable, "-m", "duemq", "reconcile", *words]
            seconds, peak_mb, text = run_child(command, folder)
            if name != "export":
                assert json.loads(text)["verdicts"] == {"ok": PAIRS * count}, text
            facts = {"wall_s": round(seconds, 1), "anonymous_mb": round(peak_mb)}
            results[f"{name}, {count:,} files"] = facts
            print(name, count, facts, file=sys.stderr)
    print(json.dumps({"machine": describe(), "files": files} | results, indent=2))


def fill_files(root: Path, files: int, queue_file_bytes: int = QUEUE_FILE_BYTES) -> Path:
    """Write a store whose log has some files of FILE_BYTES; return it."""
    folder = root / "commitlog"
    folder.mkdir(parents=True)
    pending = _template(SCHEDULE_TOPIC, {"DELAY": "1", "REAL_TOPIC": "T", "REAL_QID": "0"})
    delivery = _template("T", {"DELAY": "1"})
    starts = np.arange(PAIRS) * len(pending)
    ends = PAIRS * len(pending) + np.arange(PAIRS) * len(delivery)
    used = PAIRS * (len(pending) + len(delivery))
    blank = packer(BLANK_RECORD).pack(FILE_BYTES - used, MAGIC_BLANK)
    text = (pending * PAIRS + delivery * PAIRS + blank).ljust(FILE_BYTES, b"\0")
    for first in range(0, files, BLOCK):
        numbers = np.arange(first, min(first + BLOCK, files))
        block = np.tile(np.frombuffer(text, np.uint8), (numbers.size, 1))
        for pair in range(PAIRS):
            origins = numbers * FILE_BYTES + starts[pair]
            for position, delay_ms in ((starts[pair], 0), (ends[pair], DELAY_MS)):
                heads = np.ndarray(
                    (numbers.size,), RECORD_HEAD, block.data, int(position), (FILE_BYTES,)
                )
                heads["phys_offset"] = numbers * FILE_BYTES + position
                heads["queue_offset"] = numbers * PAIRS + pair
                heads["store_ms"] = START_MS + numbers * STEP_MS + delay_ms
                heads["prepared_offset"] = -origins - 1 if delay_ms else 0
        for number, data in zip(numbers.tolist(), block, strict=True):
            (folder / f"{number * FILE_BYTES:020d}").write_bytes(data.tobytes())
    bases = np.arange(files) * FILE_BYTES
    due_ms = START_MS + np.arange(files) * STEP_MS + DELAY_MS
    for topic, positions, size, codes in (
        (SCHEDULE_TOPIC, starts, len(pending), due_ms),
        ("T", ends, len(delivery), 0 * due_ms),
    ):
        units = np.zeros(files * PAIRS, CQ_UNIT)
        units["phys_offset"] = (bases[:, None] + positions).reshape(-1)
        units["size"], units["tags_code"] = size, np.repeat(codes, PAIRS)
        _write_queue(root / "consumequeue" / topic / "0", units.tobytes(), queue_file_bytes)
    config = root / "config"
    config.mkdir()
    (config / "delayOffset.json").write_text(json.dumps({"offsetTable": {"1": PAIRS * files}}))
    (root / "checkpoint").write_bytes(bytes(CHECKPOINT_BYTES))
    return root


def _template(topic: str, properties: dict[str, str]) -> bytes:
    fields = {"total_size": 0, "magic": 0, "body_crc": 0, "flag": 0, "sys_flag": 0}
    fields |= {"reconsume_times": 0, "prepared_offset": 0, "queue_id": 0, "queue_offset": 0}
    record = Record(
        **fields,
        topic=topic,
        body=b"x" * 100,
        property_text=encode_properties(properties | {"UNIQ_KEY": "7F0000010BB818B4AAC274A1"}),
        phys_offset=0,
        born_ms=START_MS,
        born_host=HOST,
        store_ms=START_MS,
        store_host=HOST,
    )
    return encode_record(record)


def _write_queue(folder: Path, units: bytes, file_bytes: int) -> None:
    folder.mkdir(parents=True)
    for base in range(0, len(units), file_bytes):
        part = units[base : base + file_bytes].ljust(file_bytes, b"\0")
        (folder / f"{base:020d}").write_bytes(part)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
