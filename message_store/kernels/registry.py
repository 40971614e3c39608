"""Registry of kernels: the argument types for which each is compiled, and the tasks that need it.

    send broker  message_store.kernels.encode.prepare(message_store.layout.PUT[::1], int64, ...)
    groups       kernel                               types, see `type_names`

A line of signatures.txt is one specialization that Python calls; functions that a kernel calls are
compiled with it. Because the types are listed, a kernel can be compiled, or loaded from the cache,
without being called. The list is recorded from real use:
`python -m tests.support.kernel_signatures`.

A group contains all kernels that one task calls, so a kernel can be in several groups. Any thread
may use this module; Numba compiles and loads in one thread at a time, and other threads wait when
they call a new kernel.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from llvmlite import binding as llvm
from numba import config

from duemq_common.existence import exists
from message_store.kernels import SIGNATURES, cache_directory, digest_of_all
from message_store.kernels.type_names import named, types_of

COMMENT = "#"


class KernelEntry(NamedTuple):
    """One line of the list.

    Attributes:
        number: Index of the line in the list.
        groups: Names of the tasks that need it.
        name: Dotted name of the kernel.
        types: Types of its arguments, as text.
    """

    number: int
    groups: frozenset[str]
    name: str
    types: str

    def load(self) -> None:
        """Load the machine code from the cache, or compile it."""
        compile_or_load = getattr(named(self.name), "compile", None)
        if compile_or_load is not None:  # not a plain function (NUMBA_DISABLE_JIT)
            compile_or_load(types_of(self.types))

    @property
    def is_cached(self) -> bool:
        """Whether the cache has machine code for this processor."""
        kernel = named(self.name)
        if not hasattr(kernel, "compile"):
            return True
        signature = types_of(self.types)
        return signature in kernel.overloads or kernel._cache.has(signature, kernel.targetctx)


@cache
def every_kernel() -> tuple[KernelEntry, ...]:
    """Return the whole list."""
    lines = SIGNATURES.read_text().splitlines()
    return tuple(
        _parsed(number, line)
        for number, line in enumerate(line for line in lines if not line.startswith(COMMENT))
    )


def _parsed(number: int, line: str) -> KernelEntry:
    groups, _, rest = line.partition("  ")
    name, _, types = rest.removesuffix(")").partition("(")
    return KernelEntry(number, frozenset(groups.split()), name, types)


def kernels_of(groups: Iterable[str]) -> list[KernelEntry]:
    """Return the kernels of some groups, each once."""
    names = frozenset(groups)
    return [listed for listed in every_kernel() if names & listed.groups]


def missing(kernels: Iterable[KernelEntry]) -> list[KernelEntry]:
    """Return the kernels that the cache lacks."""
    return [listed for listed in kernels if not listed.is_cached]


def load(*groups: str) -> None:
    """Load every kernel of some groups; kernels that the cache lacks are compiled.

    Otherwise Numba loads the machine code at the first call, which takes 5 to 40 ms.
    """
    for listed in kernels_of(groups):
        listed.load()


def is_complete() -> bool:
    """Return whether all kernels were compiled into this cache, for this processor."""
    return exists(_complete())


def set_complete() -> None:
    """Record that all kernels are compiled."""
    _complete().touch()


def _complete() -> Path:
    return cache_directory() / f"complete-{digest_of_all()}-{processor_digest()}"


def processor_digest() -> str:
    """Return a digest of the processor for which kernels are compiled, as Numba selects it."""
    settings: Any = config
    name = settings.CPU_NAME or llvm.get_host_cpu_name()
    features = settings.CPU_FEATURES
    if features is None:
        features = llvm.get_host_cpu_features().flatten()
    return hashlib.sha256(f"{name} {features}".encode()).hexdigest()[:8]
