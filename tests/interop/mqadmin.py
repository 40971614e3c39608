"""Commands of mqadmin over one broker: many in one Java process, in a form that can be compared.

`normal` replaces what differs from run to run (numbers, ids, paths, order of lines): two outputs
are the same text if the answers of two brokers have the same fields in the same form.
"""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tests.interop.apache import OPEN_JDK, classpath, write_logging
from tests.interop.mqadmin_commands import CLIENTS, OTHERS, ROWS, Row
from tests.interop.programs import java_program
from tests.support.child_process import ended_with_test
from tests.support.server import BROKER_NAME, CLUSTER_NAME, Server
from tests.support.wait_until import until

VERSION: Final = "5.3.3"
LIMIT_MS: Final = 30_000
CONSUMED_S: Final = 20.0
END_S: Final = 20
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
        options = ["-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", f"-Duser.home={home}"]
        options += [f"-Drocketmq.home.dir={home / 'rmq'}"]
        options += ["-Drocketmq.client.rebalance.waitInterval=500"]
        path = f"{java_program('mqadmin', VERSION)}{os.pathsep}{classpath(VERSION)}"
        self._log = (home / "mqadmin.log").open("wb")
        self._process = subprocess.Popen(
            ended_with_test(["java", *OPEN_JDK, *options, "-cp", path, "Admin"]),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True, cwd=home,
        )  # fmt: skip

    def run(self, words: str, *, limit_ms: int = 0) -> str:
        """Return what a command printed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        filled = [word.format_map(self._values) for word in words.split()]
        if filled[0] not in (*OTHERS, "help"):
            filled += ["-n", self._values["namesrv"]]
        self._process.stdin.write("\t".join([str(limit_ms or LIMIT_MS), *filled]) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"{words}: the Java process has ended; see {self._home / 'mqadmin.log'}"
        return base64.b64decode(line).decode()

    def run_all(self) -> dict[str, str]:
        """Run the commands of all rows; return their outputs, in normal form, by their words."""
        printed: dict[str, str] = {}
        for row in ROWS:
            text = self.run(row.words, limit_ms=row.limit_ms)
            self._follow(row, text)
            printed[row.words] = self.normal(text)
        return printed

    def _follow(self, row: Row, text: str) -> None:
        """Let later commands find a stable state: an id, and everything consumed."""
        if row.command == "sendMessage":
            found = UNIQUE_ID.search(text)
            assert found is not None, f"no message id in {text}"
            self._values["id"] = found[0]
        if row.command in (CLIENTS, "sendMessage", "checkMsgSendRT"):
            until(self._consumed, seconds=CONSUMED_S, what="all messages are consumed")

    def _consumed(self) -> bool:
        shown = self.run("consumerProgress -g admin-group")
        return "Consume Diff Total: 0" in shown and len(re.findall("admin-topic ", shown)) == 4

    def normal(self, text: str) -> str:
        """Return an output without what differs from run to run."""
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(END_S)
        self._process.stdout.close()
        self._log.close()
