"""Registry of kernels: for which argument types each is compiled, and which task needs it.

    send broker  message_store.kernels.encode.prepare(message_store.layout.PUT[::1], int64, ...)
    groups       kernel                               types, see `type_names`

A line of signatures.txt is one machine code that Python calls; what a kernel calls itself is
compiled with it. With the types known no kernel has to be called to be compiled, or to be loaded
from the cache. The list is recorded from real use: `python -m tests.support.kernel_signatures`.

A group is everything that one task calls, so a kernel can be in several. Belongs to any thread;
Numba compiles and loads in one at a time, and the others wait when they call a new kernel.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import NamedTuple

from message_store.kernels import CACHE_DIRECTORY, SIGNATURES, digest_of_all
from message_store.kernels.type_names import named, types_of

COMMENT = "#"


class Listed(NamedTuple):
    """One line of the list.

    Attributes:
        number: Its index in the list.
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
    def is_kept(self) -> bool:
        """Whether the cache has machine code for this processor."""
        kernel = named(self.name)
        if not hasattr(kernel, "compile"):
            return True
        signature = types_of(self.types)
        return signature in kernel.overloads or kernel._cache.has(signature, kernel.targetctx)


@cache
def every_kernel() -> tuple[Listed, ...]:
    """Return the whole list."""
    lines = SIGNATURES.read_text().splitlines()
    return tuple(
        _parsed(number, line)
        for number, line in enumerate(line for line in lines if not line.startswith(COMMENT))
    )


def _parsed(number: int, line: str) -> Listed:
    groups, _, rest = line.partition("  ")
    name, _, types = rest.removesuffix(")").partition("(")
    return Listed(number, frozenset(groups.split()), name, types)


def kernels_of(groups: Iterable[str]) -> list[Listed]:
    """Return the kernels of some groups, each once."""
    wanted = frozenset(groups)
    return [listed for listed in every_kernel() if wanted & listed.groups]


def missing(kernels: Iterable[Listed]) -> list[Listed]:
    """Return the kernels that the cache lacks."""
    return [listed for listed in kernels if not listed.is_kept]


def load(*groups: str) -> None:
    """Load every kernel of some groups into this process; one that the cache lacks is compiled.

    Numba loads machine code at the first call, which makes that call wait 5 to 40 ms.
    """
    for listed in kernels_of(groups):
        listed.load()


def is_complete() -> bool:
    """Return whether everything was compiled into this cache before."""
    return _complete().exists()


def set_complete() -> None:
    """Note that everything is compiled."""
    _complete().touch()


def _complete() -> Path:
    return CACHE_DIRECTORY / f"complete-{digest_of_all()}"
