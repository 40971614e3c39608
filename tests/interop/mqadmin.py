"""mqadmin commands for one broker, run in one Java process, with normalised output.

`normal` replaces values that differ between runs (numbers, ids, paths, order of lines), so that the
outputs of two brokers are equal if their responses have the same fields in the same format.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Final, Self

from tests.interop.admin_process import AdminProcess
from tests.interop.apache import write_logging
from tests.interop.mqadmin_commands import CLIENTS, OTHERS, ROWS, Row
from tests.support.server import BROKER_NAME, CLUSTER_NAME, Server
from tests.support.wait_until import until

VERSION: Final = "5.3.3"
LIMIT_MS: Final = 60_000
CONSUMED_S: Final = 120.0
STACK = re.compile(r"\s*(at .*\(.*\)|\.\.\. \d+ (more|common frames omitted))\s*")
LOG_LINE = re.compile(r"\d\d:\d\d:\d\d,\d{3} \|-|RocketMQLog:WARN|\d{4}-\d\d-\d\d .*(WARN|ERROR)")
UNIQUE_ID = re.compile(r"\b[0-9A-F]{32,}\b")
NUMBER = re.compile(r"-?\d+(\.\d+)?([eE]-?\d+)?%?")
SIZE = re.compile(r"\bN [KMGT]iB")
TOPICS = [{"topicName": "admin-second", "readQueueNums": 2, "writeQueueNums": 2, "perm": 6}]
GROUPS = [{"groupName": "admin-pop"}]


class AdminSession:
    """A Java process that runs commands of mqadmin over a server, one after the other."""

    def __init__(self, server: Server, home: Path) -> None:
        self._home, self._names = home, {str(home): "HOME", str(server.home): "BROKER"}
        write_logging(home)
        (home / "topics.json").write_text(json.dumps(TOPICS))
        (home / "groups.json").write_text(json.dumps(GROUPS))
        self._values = {
            "broker": server.broker_address,
            "namesrv": server.namesrv_address,
            "name": BROKER_NAME,
            "cluster": CLUSTER_NAME,
            "home": str(home),
            "id": "",
        }
        options = ["-Drocketmq.client.rebalance.waitInterval=500"]
        self._process = AdminProcess(VERSION, home, options)

    def run(self, words: str, *, limit_ms: int = 0) -> str:
        """Return what a command printed."""
        filled = [word.format_map(self._values) for word in words.split()]
        if filled[0] not in (*OTHERS, "help"):
            filled += ["-n", self._values["namesrv"]]
        return self._process.run(filled, limit_ms=limit_ms or LIMIT_MS)

    def run_all(self) -> dict[str, str]:
        """Run the commands of all rows; return their outputs, in normal form, by their words."""
        printed: dict[str, str] = {}
        for row in ROWS:
            text = self.run(row.words, limit_ms=row.limit_ms)
            self._settle(row, text)
            printed[row.words] = self.normal(text)
        return printed

    def _settle(self, row: Row, text: str) -> None:
        """After a send, keep the message id, and wait until all messages are consumed."""
        if row.command == "sendMessage":
            found = UNIQUE_ID.search(text)
            assert found is not None, f"no message id in {text}"
            self._values["id"] = found[0]
        if row.command in (CLIENTS, "sendMessage", "checkMsgSendRT"):
            until(self._consumed, seconds=CONSUMED_S, what="all are consumed", poll_s=0.5)

    def _consumed(self) -> bool:
        shown = self.run("consumerProgress -g admin-group")
        return "Consume Diff Total: 0" in shown and len(re.findall("admin-topic ", shown)) == 4

    def normal(self, text: str) -> str:
        """Return an output without the values that differ between runs."""
        lines = set()
        for line in text.splitlines():
            if STACK.fullmatch(line) or LOG_LINE.match(line):
                continue
            for path, name in self._names.items():
                line = line.replace(path, name)
            line = NUMBER.sub("N", UNIQUE_ID.sub("ID", line))
            line = SIZE.sub("N B", " ".join(line.split()))
            lines.add(re.sub(r"N( N)+", "N", line))
        return "\n".join(sorted(lines - {""}))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._process.close()
