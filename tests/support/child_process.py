"""Child processes with a log file."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from tests.support.fork_server import ForkedProcess, may_fork
from tests.support.wait_until import until

STOP_S = 60.0
LOG_TAIL_BYTES = 4_000


def ended_with_test(command: Sequence[str]) -> list[str]:
    """Return a command that the kernel kills when the test process ends."""
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "KILL", *command] if setpriv else list(command)


def tail(path: Path) -> str:
    """Return the last lines of a file."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - LOG_TAIL_BYTES))
        return file.read().decode(errors="replace")


class Child:
    """Child process whose output is appended to a file.

    Args:
        log_path: File of stdout and stderr.
        own_logs: Log files that the program writes itself; error messages quote their ends, too.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        log_path: Path,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        own_logs: Sequence[Path] = (),
    ) -> None:
        self.name = name
        self.log_path = log_path
        self.own_logs = own_logs
        self._popen: subprocess.Popen[bytes] | ForkedProcess
        log_path.parent.mkdir(parents=True, exist_ok=True)
        whole = {**os.environ, **(env or {})}
        if may_fork(command, env or {}) and cwd is None:
            log_path.touch()  # now, as for other processes
            self._popen = ForkedProcess(command, log_path, whole)
            return
        with log_path.open("ab") as log:
            self._popen = subprocess.Popen(
                ended_with_test(command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=whole,
                cwd=cwd,
            )

    @property
    def pid(self) -> int:
        """Process id."""
        return self._popen.pid

    @property
    def running(self) -> bool:
        """Whether the process has not ended."""
        return self._popen.poll() is None

    def must_run(self) -> None:
        """Raise RuntimeError with the end of the log if the process has ended."""
        if not self.running:
            raise RuntimeError(
                f"{self.name} ended with {self._popen.returncode}; end of {self.log_path}:\n"
                + self.log_tail()
            )

    def log_tail(self) -> str:
        """Return the last lines of the log and of the program's own logs."""
        others = [path for path in self.own_logs if path.exists()]
        return tail(self.log_path) + "".join(f"\nend of {path}:\n{tail(path)}" for path in others)

    def stop(self) -> None:
        """Terminate the process, and kill it if it does not end in time."""
        if self.running:
            self._popen.send_signal(signal.SIGTERM)
        try:
            self._popen.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """Kill the process and wait for its end."""
        if self.running:
            self._popen.send_signal(signal.SIGKILL)
        self._popen.wait(STOP_S)

    def memory_bytes(self) -> dict[str, int]:
        """Return the resident memory with children: `rss`, `anonymous`, `file`. Linux only."""
        sizes = {"rss": 0, "anonymous": 0, "file": 0}
        names = {"VmRSS": "rss", "RssAnon": "anonymous", "RssFile": "file"}
        for _, text in self._of_family("status"):
            for line in text.splitlines():
                key, _, rest = line.partition(":")
                if key in names:
                    sizes[names[key]] += int(rest.split()[0]) * 1_024
        return sizes

    def cpu_seconds(self) -> float:
        """Return the processor time with children. Linux only."""
        ticks = 0
        for pid, text in self._of_family("stat"):
            fields = text.rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:13]))
            if pid == self.pid:
                ticks += sum(map(int, fields[13:15]))  # children that have ended
        return ticks / os.sysconf("SC_CLK_TCK")

    def _of_family(self, name: str) -> list[tuple[int, str]]:
        """Return (pid, text) of a file in `/proc` for the process and its running children."""
        texts = [(self.pid, Path(f"/proc/{self.pid}/{name}").read_text())]
        for task in Path(f"/proc/{self.pid}/task").iterdir():
            children = ""
            with suppress(OSError):  # the thread has ended
                children = (task / "children").read_text()
            for pid in children.split():
                with suppress(OSError):  # the process has ended
                    texts.append((int(pid), Path(f"/proc/{pid}/{name}").read_text()))
        return texts


def wait_for_child(child: Child, probe: object, *, seconds: float, what: str) -> None:
    """Wait until `probe()` is true, while the child runs.

    Raises:
        RuntimeError: The child ended.
        WaitedTooLong: The probe was not true in time.
    """
    assert callable(probe)

    def ready() -> bool:
        child.must_run()
        return bool(probe())

    until(ready, seconds=seconds, what=what)
