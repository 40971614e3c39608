"""Compilation of listed kernels in child processes, one per core.

    this process --numbers of kernels--> one pipe --> child, child, ...: each takes the next number

The memory of the compiler (about 150 MB) is released when the children end. Two children, or two
brokers, never compile the same kernel: the first locks it, the other loads it
(`kernel.LoadingCache`).
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import termios
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final, Self

from message_store.kernels import folders
from message_store.kernels.registry import KernelEntry, every_kernel, kernels_of, load, missing

TIMEOUT_S: Final = 1_200
NUMBER_BYTES: Final = 2
PIPE_BYTES: Final = 4_096  # maximum bytes that a pipe accepts before any are read
REPORT_S: Final = 5  # between two reports of the progress
IDLE_NICENESS: Final = 19
STDERR_CHARACTERS: Final = 4_000


Report = Callable[[int, int], None]


class CompilationFailed(Exception):
    """A child process could not compile a kernel. The message is the end of its output."""


class Compilation:
    """Child processes that compile kernels. A context manager that ends them on exit.

    Args:
        kernels: Kernels to compile, in this order.
        niceness: 0: as this process; IDLE_NICENESS: only while processors are idle.
    """

    def __init__(self, kernels: Iterable[KernelEntry], *, niceness: int = 0) -> None:
        numbers = b"".join(each.number.to_bytes(NUMBER_BYTES, "big") for each in kernels)
        assert len(numbers) <= PIPE_BYTES
        self._count = len(numbers) // NUMBER_BYTES
        command = [sys.executable, "-m", __name__, str(niceness)]
        parents = dict.fromkeys(str(folder.parent) for folder in folders().values())
        path = os.pathsep.join(filter(None, (*parents, os.environ.get("PYTHONPATH", ""))))
        self._numbers, numbers_in = os.pipe()
        self._children: list[subprocess.Popen[str]] = []
        try:
            for _ in range(os.cpu_count() or 1):
                child = subprocess.Popen(
                    command,
                    env={**os.environ, "PYTHONPATH": path},
                    stdin=self._numbers,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    text=True,
                )
                self._children.append(child)
            os.write(numbers_in, numbers)
        except BaseException:  # a signal, too; a child that is not in the list reads no number
            self.stop()
            os.close(self._numbers)
            raise
        finally:
            os.close(numbers_in)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()
        for child in self._children:
            child.wait()
        os.close(self._numbers)

    def wait(self, report: Report | None = None) -> None:
        """Return when all kernels are compiled.

        Args:
            report: Called every `REPORT_S` with the number of kernels that children have begun, and
                the number of all.
        Raises:
            CompilationFailed: A child process failed, or was stopped.
        """
        for child in self._children:
            for _ in range(int(TIMEOUT_S / REPORT_S)):
                try:
                    _, text = child.communicate(timeout=REPORT_S)
                    break
                except subprocess.TimeoutExpired:
                    if report is not None:
                        report(self._begun(), self._count)
            else:
                raise CompilationFailed(f"not compiled after {TIMEOUT_S} s")
            if child.returncode:
                raise CompilationFailed(text[-STDERR_CHARACTERS:])

    def _begun(self) -> int:
        """Return the number of kernels that children have taken from the pipe."""
        unread = fcntl.ioctl(self._numbers, termios.FIONREAD, bytes(4))
        return self._count - int.from_bytes(unread, sys.byteorder) // NUMBER_BYTES

    def stop(self) -> None:
        """End the child processes; compiled kernels stay in the cache."""
        for child in self._children:
            child.kill()


def compile_all(kernels: Iterable[KernelEntry]) -> None:
    """Compile kernels, in processes, into the cache.

    Raises:
        CompilationFailed: A kernel cannot be compiled.
    """
    with Compilation(kernels) as compilation:
        compilation.wait()


def compile_and_load(*groups: str) -> None:
    """Load every kernel of some groups; kernels that the cache lacks are compiled in processes.

    If that fails, this process compiles them.
    """
    lacking = missing(kernels_of(groups))
    if lacking:
        with suppress(CompilationFailed):
            compile_all(lacking)
    load(*groups)


def main(niceness: int) -> None:
    """Compile the kernels whose numbers come from standard input."""
    os.nice(niceness)
    listed = every_kernel()
    while number := os.read(sys.stdin.fileno(), NUMBER_BYTES):
        listed[int.from_bytes(number, "big")].load()


if __name__ == "__main__":
    main(int(sys.argv[1]))
