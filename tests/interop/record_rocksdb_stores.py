"""Record golden stores of Apache 5.5.1, each ended by `kill -9`, and their manifest.

Usage: `python -m tests.interop.record_rocksdb_stores [NAME ...]`. Files go to `tests/golden`:
`stores/apache-5.5.1-NAME.tar.gz` for each case of `CASES`, and `manifests/apache-5.5.1.jsonl`. Each
line of the manifest has the name of its store and the kind `sent` (a message, with its delay level,
the due time of a timer, and `end` of a transaction: open, commit, rollback), `recalled`, `popped`
(a message, whether it was acknowledged, its pop time and invisible time), `delivered` (bodies and
their number of deliveries before the kill) or `end` (time of the kill).
"""

from __future__ import annotations

import json
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from tests.interop.apache import NEWEST, Apache, classpath, jvm_options
from tests.interop.programs import java_program
from tests.interop.record_stores import HOUR_MS, KEYS, PENDING_LEVELS, SOON_LEVEL, Line
from tests.interop.store_work import TOPIC, Ledger, pull_topic, send
from tests.interop.test_pop_stores import PopLedger
from tests.interop.test_transactions_of_groups import COMMIT, END_TRANSACTION, ROLLBACK, begin
from tests.interop.timer_work import TimerLedger
from tests.support.child_process import Child
from tests.support.golden_stores import GOLDEN
from tests.support.remoting_requests import SUCCESS, call, max_offset
from tests.support.wait_until import now_ms, until

Keys = Mapping[str, str]
TIMELINE: Final = {"timerRocksDBEnable": "true"}
HALVES: Final = {"transRocksDBEnable": "true", "transWriteOriginTransHalfEnable": "false"}
# Without the second key, 5.5.1 refuses to start with the first.
DOUBLE: Final = {"rocksdbCQDoubleWriteEnable": "true", "combineCQUseRocksdbForLmq": "true"}
SEPARATE: Final = {"useSeparateStorePathForRocksdbCQ": "true"}
ROCKSDB: Final = {"storeType": "defaultRocksDB"}
LMQ: Final = {"enableLmq": "true", "enableMultiDispatch": "true"}
POP_KV: Final = {"popConsumerKVServiceInit": "true", "popConsumerKVServiceEnable": "true"}
POPS: Final = ("pop", "pop-kv")  # stores with messages in flight of POP, and no others
LIGHT_QUEUES: Final = {"%LMQ%a": 4, "%LMQ%b": 2}  # messages of each
CASES: Final[Mapping[str, tuple[Keys, ...]]] = {
    "wheel": ({}, {}),
    "timeline": (TIMELINE, TIMELINE),
    "timeline-off": (TIMELINE, {}),
    "rolled": (TIMELINE,),
    "halves": ({}, HALVES),
    "combined": (DOUBLE, DOUBLE),
    "combined-separate": (DOUBLE | SEPARATE, DOUBLE | SEPARATE),
    "rocksdb": (ROCKSDB,),
    "rocksdb-separate": (ROCKSDB | SEPARATE,),
    "rocksdb-exported": (ROCKSDB,),
    "lmq": (LMQ,),
    "pop": ({},),
    "pop-kv": (POP_KV,),
}
"""Additional keys of each start of a broker, by store."""
VERDICTS: Final = {"commit": COMMIT, "rollback": ROLLBACK, "open": ""}
EXPORT_TABLES: Final = 355  # EXPORT_ROCKSDB_CONFIG_TO_JSON
TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
TIMERS, ROLLED = 14, 2  # records in the timer topic without rolls, and timers that are rolled
LOCAL_FILES: Final = ("LOG", "OPTIONS", "IDENTITY")  # of RocksDB, with paths of this machine


class RollingApache(Apache):
    """Apache's broker whose RocksDB timeline rolls every two seconds instead of every hour."""

    def start_java(self, name: str, main: str, conf: Path, options: list[str]) -> Child:
        if name != "broker":
            return super().start_java(name, main, conf, options)
        classes = f"{java_program('rolling', NEWEST)}:{classpath(NEWEST)}"
        command = ["java", *jvm_options(), *options, f"-Duser.home={self.home}"]
        command += ["-cp", classes, "RollingBroker", "-c", str(conf)]
        env = {"ROCKETMQ_HOME": str(self.home / "rmq")}
        return Child("rolling broker", command, log_path=self.home / "broker.log", env=env)


class Recording:
    """Messages sent to one store, as lines of the manifest."""

    def __init__(self, name: str, home: Path) -> None:
        made = RollingApache if name == "rolled" else Apache
        self.name, self.apache = name, made(NEWEST, home)
        self.levels, self.timers = Ledger(), TimerLedger()
        self.ends: dict[str, str] = {}  # of transactions, by body
        self.popped: list[Line] = []

    def work(self, name: str) -> None:
        """Send messages of every kind; return when the first of each kind are delivered."""
        apache, levels, timers = self.apache, self.levels, self.timers
        levels.send(apache, f"{name}-plain", 12)
        levels.send(apache, f"{name}-soon", 4, level=SOON_LEVEL)
        timers.send(apache, f"{name}-timer", 4, delay_ms=2_500, kind="TIMER_DELIVER_MS")
        timers.send(apache, f"{name}-hour", 4, delay_ms=HOUR_MS, kind="TIMER_DELIVER_MS")
        timers.send(apache, f"{name}-days", 2, delay_ms=60 * HOUR_MS, kind="TIMER_DELAY_SEC")
        timers.send(apache, f"{name}-taken", 2, delay_ms=HOUR_MS, kind="TIMER_DELAY_MS")
        timers.recall(apache, timers.named(f"{name}-taken"))
        for verdict, code in VERDICTS.items():
            body = f"{name}-{verdict}-0"
            fields = begin(apache, body, {})
            if code:
                fields = fields | {"commitOrRollback": code}
                assert call(apache.broker_port, END_TRANSACTION, fields).code == SUCCESS
            self.ends[body] = verdict
        for level in PENDING_LEVELS:
            levels.send(apache, f"{name}-level{level}", 2, level=level)
        pending = {body for body, level in levels.levels.items() if level in PENDING_LEVELS}
        levels.wait(apache, sorted(levels.levels.keys() - pending))
        timers.wait(apache, timers.named(f"{name}-timer"))

    def record(self, rounds: tuple[Keys, ...]) -> list[Line]:
        """Work once for each start; archive the store, and return its lines."""
        apache, delivered = self.apache, Counter[str]()
        for number, keys in enumerate(rounds):
            apache.keys = KEYS | keys
            apache.start()
            if self.name in POPS:
                self.pop()
                apache.kill()
                continue
            if number == 0:
                apache.create_topic(TOPIC)
            self.work(("first", "second")[number])
            if self.name == "rolled":
                until(self.is_rolled, seconds=60, what="timers rolled three times")
            if self.name == "lmq":
                self.send_to_light_queues()
            if self.name == "rocksdb-exported":
                fields = {"configType": "topics;subscriptionGroups;consumerOffsets"}
                assert call(apache.broker_port, EXPORT_TABLES, fields).code == SUCCESS
            delivered = Counter(record.body.decode() for record in pull_topic(apache))
            apache.kill()
        lines = [*self.lines(), {"kind": "delivered", "counts": dict(sorted(delivered.items()))}]
        lines.append({"kind": "end", "at": now_ms()})
        name = f"apache-{NEWEST}-{self.name}"
        with tarfile.open(GOLDEN / "stores" / f"{name}.tar.gz", "w:gz") as archive:
            archive.add(apache.store_dir, name, filter=without_machine)
        return [{"store": self.name} | line for line in lines]

    def pop(self) -> None:
        """Pop two thirds of the messages of one queue, and acknowledge half of these."""
        pops = PopLedger()
        pops.fill(self.apache)
        self.levels.levels |= dict.fromkeys(pops.sent, 0)
        self.popped = [
            {"kind": "popped", "body": body, "acknowledged": True} for body in pops.acknowledged
        ]
        for body, message in pops.held.items():
            _, pop_ms, invisible_ms, *_ = message.handle.split(" ")
            times = {"pop_ms": int(pop_ms), "invisible_ms": int(invisible_ms)}
            self.popped.append({"kind": "popped", "body": body, "acknowledged": False} | times)

    def send_to_light_queues(self) -> None:
        """Send messages that Apache's broker also puts into light queues."""
        for number in range(max(LIGHT_QUEUES.values())):
            names = [name for name, count in LIGHT_QUEUES.items() if number < count]
            body = f"light-{number}"
            send(self.apache, body, 0, {"INNER_MULTI_DISPATCH": ",".join(names)})
            self.levels.levels[body] = 0
        self.levels.wait(self.apache, ["light-3"])

    def is_rolled(self) -> bool:
        """Return whether the log has three copies of each timer that is days ahead."""
        return max_offset(self.apache.broker_port, TIMER_TOPIC, 0) >= TIMERS + 3 * ROLLED

    def lines(self) -> list[Line]:
        """Return the lines of the sent and the recalled messages."""
        levels, timers = self.levels.levels.items(), self.timers.due_ms.items()
        sent: list[Line] = [{"body": body, "level": level} for body, level in levels]
        sent += [{"body": body, "level": 0, "due_ms": due_ms} for body, due_ms in timers]
        sent += [{"body": body, "level": 0, "end": verdict} for body, verdict in self.ends.items()]
        recalled: list[Line] = [
            {"kind": "recalled", "body": body} for body in sorted(self.timers.recalled)
        ]
        return [{"kind": "sent", "topic": TOPIC} | line for line in sent] + recalled + self.popped


def without_machine(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Return an entry without the recording machine's names; None for a file that has its paths."""
    name = Path(info.name).name
    if name.startswith(LOCAL_FILES) and info.isfile() and "commitlog" not in info.name:
        return None
    if "rocksdbstore/" in info.name:
        return None
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    return info


def main(names: Sequence[str]) -> None:
    """Record some stores, and replace their lines of the manifest."""
    path = GOLDEN / "manifests" / f"apache-{NEWEST}.jsonl"
    for name in names or CASES:
        with tempfile.TemporaryDirectory() as folder:
            recording = Recording(name, Path(folder))
            try:
                lines = recording.record(CASES[name])
            finally:
                recording.apache.__exit__(None, None, None)
        old = path.read_text().splitlines(keepends=True) if path.exists() else []
        kept = [line for line in old if json.loads(line)["store"] != name]
        path.write_text("".join(kept + [json.dumps(line) + "\n" for line in lines]))


if __name__ == "__main__":
    main(sys.argv[1:])
