"""The one way kernels are compiled, and loaded when they were compiled before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from numba import njit, typeof
from numba.core.caching import FunctionCache

P = ParamSpec("P")
R = TypeVar("R")


class LoadingCache(FunctionCache):
    """Loads machine code without getting ready to compile.

    Numba's own cache first imports all that it could compile: 0.25 s and 20 MB, before the first
    kernel can run. Code that is only loaded needs none of it; when something has to be compiled
    after all, the compiler gets itself ready.
    """

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the compiled function for a signature, None if it is not in the cache."""
        load: Any = self._load_overload
        return load(sig, target_context)


def kernel(function: Callable[P, R]) -> Callable[P, R]:
    """Compile at first use, keep the machine code, run without the interpreter's lock.

    Kernels do not allocate (Numba refuses it): so arrays need no counting of references inside,
    which costs two atomic operations per array and call otherwise. The front's kernels became
    five times faster by leaving it out.
    """
    compiled: Any = njit(nogil=True, _nrt=False)(function)
    if hasattr(compiled, "enable_caching"):  # not a plain function (NUMBA_DISABLE_JIT)
        make: Any = LoadingCache
        compiled._cache = make(function)
    made: Callable[P, R] = compiled
    return made


def entry(kernel: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> Callable[P, R]:
    """Return the way into a kernel for arguments of exactly the types that `args` have.

    A kernel looks at the types of its arguments at each call; with arrays of records and tuples
    that takes 2 us, three times as long as the rest of a call. What is returned does not look: an
    array of another dtype, dimension or layout would be misread. So it is for calls whose arrays
    are made in one place, and a read-only array needs an entry of its own.
    """
    assert not kwargs
    find = getattr(kernel, "compile", None)
    if find is None:  # a plain function (NUMBA_DISABLE_JIT)
        return kernel
    type_of: Callable[[Any], Any] = typeof
    found: Callable[P, R] = find(tuple(type_of(arg) for arg in args))
    return found
