"""Brokers as processes that are forked from one which has imported their modules.

That saves the imports, which are more than half of a start. Each is a process of its own, with its
own signals, files and end. Tests of starts, of memory and of imports start brokers otherwise.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Final

TOP: Final = Path(__file__).resolve().parents[2]
PROGRAM: Final = "duemq"
PRELOADED: Final = (
    "duemq.cli.server_command",
    "duemq.broker.broker",
    "duemq_migration.plugin",
    "recurring_schedules.plugin",
    "schedule_service.plugin",
    "spark_reconciliation.plugin",
    "timer_store.plugin",
)
SINGLE_THREAD: Final = "OPENBLAS_NUM_THREADS"  # a process with threads must not fork
PR_SET_PDEATHSIG: Final = 1

_contexts: list[ForkServerContext] = []


def use_forks() -> None:
    """Fork the brokers that are started from now on; the first one starts the server."""
    if sys.platform == "linux" and not _contexts:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(list(PRELOADED))
        _contexts.append(context)


def may_fork(command: Sequence[str], env: Mapping[str, str]) -> bool:
    """Return whether forks are used for a command with some additional environment.

    Other variables, for example of the dynamic linker, may act before or during the imports.
    """
    is_program = list(command[:3]) == [sys.executable, "-m", PROGRAM]
    tree = env.get("PYTHONPATH", "").partition(os.pathsep)[0]
    return bool(_contexts) and is_program and env.keys() == {"PYTHONPATH"} and tree == str(TOP)


class ForkedProcess:
    """Process with the interface of `subprocess.Popen`.

    Attributes:
        returncode: Exit code, None while it runs.
    """

    def __init__(self, command: Sequence[str], log_path: Path, env: Mapping[str, str]) -> None:
        [context] = _contexts
        threads = os.environ.get(SINGLE_THREAD)
        os.environ[SINGLE_THREAD] = "1"
        try:
            arguments = (list(command[3:]), str(log_path), dict(env))
            self._process = context.Process(target=_run, args=arguments)
            self._process.start()
        finally:
            del os.environ[SINGLE_THREAD]
            if threads is not None:
                os.environ[SINGLE_THREAD] = threads
        assert self._process.pid is not None
        self.pid: int = self._process.pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, None while it runs."""
        if self.returncode is None and self._process.exitcode is not None:
            self.returncode = self._process.exitcode
            self._process.close()
        return self.returncode

    def wait(self, timeout: float) -> int:
        """Wait for its end.

        Raises:
            subprocess.TimeoutExpired: It runs longer.
        """
        if self.returncode is None:
            self._process.join(timeout)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired(PROGRAM, timeout)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal, if it runs."""
        if self.poll() is None:
            os.kill(self.pid, number)


def _run(arguments: list[str], log_path: str, env: dict[str, str]) -> None:
    """Run the program in the forked process, which the kernel kills at the end of the server."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for descriptor in (1, 2):
        os.dup2(log, descriptor)
    os.close(log)
    os.environ.clear()
    os.environ.update(env)
    sys.argv = [PROGRAM, *arguments]
    runpy.run_module(PROGRAM, run_name="__main__", alter_sys=True)
