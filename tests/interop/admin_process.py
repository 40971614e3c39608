"""Apache's mqadmin: one Java process per version and home runs all its commands.

A separate Java process per command would take 1.5 s of processor time, and 3 s until its client
has shut down.
"""

from __future__ import annotations

import base64
import os
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from tests.interop.apache import LOGBACK_LINE, classpath, jars, jvm_options
from tests.interop.class_archive import archive_options
from tests.interop.programs import java_program
from tests.support.child_process import ended_with_test

LIMIT_MS: Final = 60_000
END_S: Final = 60


class AdminProcess:
    """A Java process that runs commands of mqadmin, one after the other.

    Args:
        home: Directory with `rmq`, its ROCKETMQ_HOME; the log is written there.
        options: More options of Java.
    """

    def __init__(self, version: str, home: Path, options: Sequence[str] = ()) -> None:
        self.home, self._log_path = home, home / "mqadmin.log"
        path = f"{classpath(version)}{os.pathsep}{java_program('mqadmin', version)}"
        command = ["java", *jvm_options(), *archive_options("mqadmin", jars(version))]
        command += ["-Xmx256m", f"-Duser.home={home}"]
        command += [f"-Drocketmq.home.dir={home / 'rmq'}", *options, "-cp", path, "Admin"]
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(
                ended_with_test(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=home,
            )

    def run(self, words: Sequence[str], *, limit_ms: int = LIMIT_MS) -> str:
        """Return what a command printed.

        Args:
            limit_ms: Time after which a command is interrupted.
        Raises:
            RuntimeError: The command has ended the process.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\t".join([str(limit_ms), *words]) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            log = self._log_path.read_text()
            raise RuntimeError(f"mqadmin {' '.join(words)} has ended Java:\n{log}")
        return base64.b64decode(line).decode()

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):  # it has ended already
            self._process.stdin.close()
        self._process.wait(END_S)
        self._process.stdout.close()


_latest: dict[str, AdminProcess] = {}


def mqadmin(version: str, home: Path, *arguments: str) -> str:
    """Run a command of mqadmin of that version and return what it printed.

    Raises:
        RuntimeError: It did not end in order.
    """
    try:
        printed = _process(version, home).run(arguments)
    except (RuntimeError, BrokenPipeError):  # an earlier command may have ended the process
        end_processes(version)
        try:
            printed = _process(version, home).run(arguments)
        except RuntimeError:
            end_processes(version)
            raise
    lines = printed.splitlines(keepends=True)
    return "".join(line for line in lines if not LOGBACK_LINE.match(line))


def _process(version: str, home: Path) -> AdminProcess:
    process = _latest.get(version)
    if process is None or process.home != home:
        end_processes(version)
        process = _latest[version] = AdminProcess(version, home)
    return process


def end_processes(*versions: str) -> None:
    """End the processes of these versions, of all without an argument."""
    for version in versions or tuple(_latest):
        if version in _latest:
            _latest.pop(version).close()
