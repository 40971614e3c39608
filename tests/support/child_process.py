"""A child process with a log file, ended by its own pid and by nothing else."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from tests.support.wait_until import until

STOP_S = 60.0
LOG_TAIL_BYTES = 4_000


def tied_to_us(command: Sequence[str]) -> list[str]:
    """Return `command` so that the kernel ends it when the test process dies."""
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "KILL", *command] if setpriv else list(command)


class Child:
    """A running program whose output goes to a file.

    Args:
        log_path: Receives stdout and stderr, appended.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        log_path: Path,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> None:
        self.name = name
        self.log_path = log_path
        log_path.parent.mkdir(parents=True, exist_ok=True)
        with log_path.open("ab") as log:
            self._popen = subprocess.Popen(
                tied_to_us(command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(env or {})},
                cwd=cwd,
            )

    @property
    def pid(self) -> int:
        """Process id."""
        return self._popen.pid

    @property
    def running(self) -> bool:
        """True until the process has ended."""
        return self._popen.poll() is None

    def must_run(self) -> None:
        """Raise with the end of the log when the process has ended."""
        if not self.running:
            raise RuntimeError(
                f"{self.name} ended with {self._popen.returncode}; end of {self.log_path}:\n"
                + self.log_tail()
            )

    def log_tail(self) -> str:
        """Return the last lines of the log."""
        with self.log_path.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(0, size - LOG_TAIL_BYTES))
            return log.read().decode(errors="replace")

    def stop(self) -> None:
        """Ask the process to end, wait for it; force it when it does not."""
        if self.running:
            self._popen.send_signal(signal.SIGTERM)
        try:
            self._popen.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """End the process at once (`kill -9`) and wait until it is gone."""
        if self.running:
            self._popen.send_signal(signal.SIGKILL)
        self._popen.wait(STOP_S)

    def memory_bytes(self) -> dict[str, int]:
        """Return resident memory: `rss`, `anonymous`, `file`; with its children, Linux only."""
        found = {"rss": 0, "anonymous": 0, "file": 0}
        names = {"VmRSS": "rss", "RssAnon": "anonymous", "RssFile": "file"}
        for _, text in self._of_family("status"):
            for line in text.splitlines():
                key, _, rest = line.partition(":")
                if key in names:
                    found[names[key]] += int(rest.split()[0]) * 1_024
        return found

    def cpu_seconds(self) -> float:
        """Return the processor time so far, user and system, with its children; Linux only."""
        ticks = 0
        for pid, text in self._of_family("stat"):
            fields = text.rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:13]))
            if pid == self.pid:
                ticks += sum(map(int, fields[13:15]))  # those that have ended
        return ticks / os.sysconf("SC_CLK_TCK")

    def _of_family(self, name: str) -> list[tuple[int, str]]:
        """Return (pid, text) of a file of `/proc` of the process and of the children that run."""
        found = [(self.pid, Path(f"/proc/{self.pid}/{name}").read_text())]
        for task in Path(f"/proc/{self.pid}/task").iterdir():
            children = ""
            with suppress(OSError):  # the thread has ended
                children = (task / "children").read_text()
            for pid in children.split():
                with suppress(OSError):  # the process has ended
                    found.append((int(pid), Path(f"/proc/{pid}/{name}").read_text()))
        return found


def wait_for_child(child: Child, probe: object, *, seconds: float, what: str) -> None:
    """Wait until `probe()` is true, failing early when the child ends.

    Raises:
        RuntimeError: The child ended.
        WaitedTooLong: The probe stayed false.
    """
    assert callable(probe)

    def ready() -> bool:
        child.must_run()
        return bool(probe())

    until(ready, seconds=seconds, what=what)
