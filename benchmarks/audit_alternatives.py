"""Alternatives to the audit command, each run in a process of its own.

python -m benchmarks.audit_alternatives scan head|audit|all STORE   print seconds of a scan
python -m benchmarks.audit_alternatives script|pandas STORE         print counts of verdicts

`benchmarks.loads.reconciliation` runs and measures them.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from message_store.log.record import decode_record
from spark_reconciliation.audit.table_reader import ScanPart, TableReader
from spark_reconciliation.audit.verdicts import AUDITED
from spark_reconciliation.scan.options import parse_options
from spark_reconciliation.scan.roles import Role
from spark_reconciliation.scan.tables import TABLES

PROCESSES = 2
HEAD = ["phys_offset", "topic", "queue_id", "queue_offset", "store_ms", "record_size"]
COLUMNS = {
    "head": HEAD,
    "audit": list(AUDITED),
    "all": [name for name, _ in TABLES["messages"] if name != "passed"],
}
LATE_MS = 2_000
TIMER_TOPIC = "rmq_sys_wheel_timer"


def scan(name: str, store: str) -> float:
    """Return the seconds of a scan of all records in two processes, after loading the kernels."""
    parts = _reader(name, store).partitions()
    with ProcessPoolExecutor(PROCESSES) as pool:
        list(pool.map(_count, [name] * 2, [store] * 2, [parts[0]] * 2))
        begin = time.perf_counter()
        sum(pool.map(_count, [name] * len(parts), [store] * len(parts), parts))
        return time.perf_counter() - begin


def _reader(name: str, store: str) -> TableReader:
    return TableReader(parse_options({"path": store}), COLUMNS[name])


def _count(name: str, store: str, part: ScanPart) -> int:
    return sum(batch.num_rows for batch in _reader(name, store).read(part))


def script(store: str) -> Counter[str]:
    """Audit timers in plain Python, record by record."""
    pending: dict[int, tuple[Any, ...]] = {}
    sent: dict[int, list[tuple[Any, ...]]] = {}
    for path in sorted(Path(store, "commitlog").iterdir()):
        data, base = memoryview(path.read_bytes()), int(path.name)
        position = 0
        while position + 8 <= len(data) and data[position + 4] == 0xDA:
            record = decode_record(data[position:], base + position)
            properties = record.properties
            if record.topic == TIMER_TOPIC:
                target = (properties["REAL_TOPIC"], int(properties["REAL_QID"]))
                pending[base + position] = (
                    *target,
                    record.body_crc,
                    int(properties["TIMER_DELIVER_MS"]),
                )
            elif record.prepared_offset < 0:
                delivery = (record.topic, record.queue_id, record.body_crc, record.store_ms)
                sent.setdefault(-record.prepared_offset - 1, []).append(delivery)
            position += record.total_size
    return Counter(_verdict(facts, sent.get(position, [])) for position, facts in pending.items())


def _verdict(facts: tuple[Any, ...], sent: list[tuple[Any, ...]]) -> str:
    if not sent:
        return "lost"
    if len(sent) > 1:
        return "duplicated"
    if sent[0][:3] != facts[:3]:
        return "misrouted or corrupt"
    late_ms = sent[0][3] - facts[3]
    return "early" if late_ms < 0 else "late" if late_ms > LATE_MS else "ok"


def joined(store: str) -> Counter[str]:
    """Audit timers with a pandas join of the audit's columns, in memory."""
    import pandas as pd  # type: ignore[import-untyped]
    import pyarrow as pa

    reader = _reader("audit", store)
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    rows: Any = pa.Table.from_batches(batches).to_pandas()
    is_sent = rows["role"] == Role.DELIVERY
    rows["key"] = rows["phys_offset"].where(~is_sent, -rows["prepared_offset"] - 1)
    both = rows[~is_sent].merge(rows[is_sent], on="key", how="outer", suffixes=("", "_sent"))
    same = (both["target"] == both["target_sent"]) & (both["body_crc"] == both["body_crc_sent"])
    late_ms = both["store_ms_sent"] - both["due_ms"]
    verdicts = pd.Series("ok", index=both.index).mask(late_ms > LATE_MS, "late")
    verdicts = verdicts.mask(late_ms < 0, "early").mask(~same, "misrouted or corrupt")
    verdicts = verdicts.mask(both["key"].duplicated(keep=False), "duplicated")
    return Counter(verdicts.mask(late_ms.isna(), "lost").value_counts().to_dict())


def main(words: list[str]) -> int:
    """Run one alternative and print its result."""
    if words[0] == "scan":
        print(scan(words[1], words[2]))
    else:
        print(dict({"script": script, "pandas": joined}[words[0]](words[1])))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
