"""Injector of storage errors at one call site of the product, in this process.

The injector replaces functions of `os`, `mmap.mmap` and `open`, and identifies a call by the
calling line of the product. It wraps the files that `open` returns, so that their writes can fail.
"""

from __future__ import annotations

import builtins
import errno
import io
import mmap
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.storage_faults.call_sites import OS_CALLS, Site, running_site

SHORT = "short"
DROP = "EIO, written pages lost"
EIO, ENOSPC, EMFILE, ENOMEM = (
    errno.errorcode[n] for n in (errno.EIO, errno.ENOSPC, errno.EMFILE, errno.ENOMEM)
)
FAULTS = {
    "open": (EIO, ENOSPC, EMFILE),
    "pread": (EIO, SHORT),
    "preadv": (EIO, SHORT),
    "read": (EIO,),
    "pwrite": (EIO, ENOSPC, SHORT),
    "pwritev": (EIO, ENOSPC, SHORT),
    "write": (EIO, ENOSPC),
    "fsync": (EIO, DROP),
    "fdatasync": (EIO, DROP),
    "ftruncate": (EIO, ENOSPC),
    "truncate": (EIO, ENOSPC),
    "posix_fallocate": (EIO, ENOSPC),
    "rename": (EIO, ENOSPC),
    "replace": (EIO, ENOSPC),
    "unlink": (EIO,),
    "link": (EIO, ENOSPC),
    "mkdir": (EIO, ENOSPC),
    "mmap": (EIO, ENOMEM),
}
"""Errors to inject, by function."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Error at one call site.

    Attributes:
        site: Call site.
        error: Name of an errno, `short`, or `EIO, written pages lost`.
        first: Number of the first call that fails, counted from 1.
        lasting: Whether all later calls at this site fail, too.
    """

    site: Site
    error: str
    first: int = 1
    lasting: bool = False

    def __str__(self) -> str:
        times = "from call" if self.lasting else "at call"
        return f"{self.site}: {self.error} {times} {self.first}"


class Injector:
    """Counter of calls by call site, which makes calls of one site fail.

    Attributes:
        counts: Number of calls by site.
        fired: Number of injected errors.
    """

    def __init__(self, fault: Fault | None = None) -> None:
        self.fault = fault
        self.counts: Counter[Site] = Counter()
        self.fired = 0
        self.armed = True
        self._written: dict[int, list[tuple[int, bytes]]] = {}
        self._real: dict[str, Callable[..., Any]] = {}
        self._open = builtins.open

    def install(self) -> None:
        """Replace the functions for the rest of the process."""
        for name in OS_CALLS - {"makedirs"}:
            self._real[name] = getattr(os, name)
            setattr(os, name, self._wrapped(name))
        close = os.close

        def closed(fd: int) -> None:
            self._written.pop(fd, None)  # descriptors are reused
            close(fd)

        os.close = closed
        real_map = mmap.mmap

        class Mapped(real_map):  # type: ignore[misc, valid-type]
            def __new__(cls, *args: Any, **more: Any) -> Any:
                injector.enter("mmap", ())
                return super().__new__(real_map, *args, **more)

        injector = self
        mmap.mmap = Mapped  # type: ignore[misc]
        builtins.open = io.open = self.open_file

    def _wrapped(self, name: str) -> Callable[..., Any]:
        real = self._real[name]

        def call(*args: Any, **more: Any) -> Any:
            error = self.enter(name, args)
            if error == SHORT:
                return self._short(name, args)
            if name in {"pwrite", "pwritev"}:
                self._remember(args)
            if name in {"fsync", "fdatasync"}:
                self._written.pop(args[0], None)
            return real(*args, **more)

        return call

    def enter(self, name: str, args: tuple[Any, ...]) -> str:
        """Count a call; return SHORT for a short read or write.

        Raises:
            OSError: The injected error.
        """
        site = running_site(name)
        if site is None or not self.armed:
            return ""
        self.counts[site] += 1
        fault = self.fault
        if fault is None or site != fault.site:
            return ""
        number = self.counts[site]
        if number < fault.first or (number > fault.first and not fault.lasting):
            return ""
        self.fired += 1
        if fault.error == SHORT:
            return SHORT
        if fault.error == DROP:
            self._drop(args[0])
        code = getattr(errno, fault.error.partition(",")[0])
        raise OSError(code, os.strerror(code))

    def _short(self, name: str, args: tuple[Any, ...]) -> Any:
        """Read or write only half of the bytes."""
        real = self._real[name]
        if name in {"pread", "read"}:
            return real(args[0], max(args[1] // 2, 1), *args[2:])
        if name == "preadv":
            return real(args[0], [memoryview(args[1][0])[: max(len(args[1][0]) // 2, 1)]], args[2])
        if name == "pwritev":
            data = b"".join(bytes(part) for part in args[1])
            self._remember((args[0], [data], args[2]))
            return self._real["pwrite"](args[0], data[: max(len(data) // 2, 1)], args[2])
        data = bytes(args[1])
        if name == "pwrite":
            self._remember((args[0], data, args[2]))
        return real(args[0], data[: max(len(data) // 2, 1)], *args[2:])

    def _remember(self, args: tuple[Any, ...]) -> None:
        """Save the bytes that a write replaces, so that a failed sync can undo the write."""
        if self.fault is None or self.fault.error != DROP:
            return
        fd, data, offset = args
        parts = data if isinstance(data, (list, tuple)) else [data]
        size = sum(memoryview(part).nbytes for part in parts)
        try:
            old = self._real["pread"](fd, size, offset)
        except OSError:  # opened for writing only
            return
        self._written.setdefault(fd, []).append((offset, old.ljust(size, b"\0")))

    def _drop(self, fd: int) -> None:
        """Undo the writes since the last sync, as the kernel drops dirty pages after an error."""
        for offset, old in reversed(self._written.pop(fd, [])):
            self._real["pwrite"](fd, old, offset)

    def open_file(self, *args: Any, **more: Any) -> Any:
        """Open a file whose writes can fail."""
        self.enter("open", args)
        file = self._open(*args, **more)
        return _File(file, self) if file.writable() else file


class _File:
    """Wrapper of a file that passes writes through the injector."""

    def __init__(self, file: Any, injector: Injector) -> None:
        self._file, self._injector = file, injector

    def write(self, data: Any) -> Any:
        self._injector.enter("write", ())
        return self._file.write(data)

    def __enter__(self) -> _File:
        return self

    def __exit__(self, *exc: object) -> None:
        self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)
