"""Preload of cached machine code for all compiled signatures, without a call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def load_kept(*kernels: Callable[..., Any]) -> int:
    """Load the kept machine code of kernels that have none loaded; return how many got some.

    A kernel whose code is loaded at its first call makes that call wait 5 to 40 ms. What was never
    compiled is left to the first call.
    """
    loaded = 0
    for kernel in kernels:
        found: Any = kernel
        if not hasattr(found, "overloads") or found.overloads:  # NUMBA_DISABLE_JIT, or in use
            continue
        for signature in _kept_signatures(found):
            found.compile(signature)
        loaded += bool(found.overloads)
    return loaded


def _kept_signatures(kernel: Any) -> list[Any]:
    """Return the argument types that machine code is kept for, for this processor."""
    cache = kernel._cache
    codegen = kernel.targetctx.codegen()
    kept = cache._cache_file._load_index()
    return [key[0] for key in kept if key == cache._index_key(key[0], codegen)]
