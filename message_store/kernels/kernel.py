"""The `kernel` decorator: compiles, caches and loads machine code."""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any, Final, ParamSpec, Self, TypeVar

import numpy as np
from llvmlite import binding as llvm
from numba import njit, typeof, types
from numba.core.caching import CacheImpl, CompileResultCacheImpl, FunctionCache, _CacheLocator
from numba.np.numpy_support import from_dtype, map_layout

from message_store.kernels import cache_directory, digest_of, module_of

P = ParamSpec("P")
R = TypeVar("R")
log = logging.getLogger(__name__)
NOT_LOCKED: Final = -1  # no file descriptor


class ContentLocator(_CacheLocator):
    """Locator of machine code: a folder named after the digest of its sources."""

    def __init__(self, module: str, path: Path, line: int) -> None:
        self._digest, self._line = digest_of(path), line
        self._folder = cache_directory() / f"{module}-{self._digest}"

    def get_cache_path(self) -> str:
        """Return the folder."""
        return str(self._folder)

    def get_source_stamp(self) -> str:
        """Return the stamp that a valid index has."""
        return self._digest

    def get_disambiguator(self) -> str:
        """Return a text that differs between functions of one name."""
        return str(self._line)

    @classmethod
    def from_function(cls, py_func: Any, py_file: str) -> Self | None:
        """Return the locator of a function, None if it is no kernel or has no folder.

        Without a locator, Numba stores the code next to the source.
        """
        path = Path(py_file).resolve()
        module = module_of(path)
        if module is None:
            return None
        locator = cls(module, path, py_func.__code__.co_firstlineno)
        try:
            os.makedirs(locator._folder, exist_ok=True)
        except OSError:  # the directory is read-only and lacks the folder
            return None
        return locator


class ContentCacheImpl(CompileResultCacheImpl):
    """Numba's machine code files, located by `ContentLocator`."""

    _locator_classes = (ContentLocator, *CacheImpl._locator_classes)


class LoadingCache(FunctionCache):
    """Cache of machine code: loads without the compiler, compiles in one process at a time.

    Numba's own cache first initializes the compiler: 0.25 s and 20 MB before the first kernel runs.
    Loaded code does not need it; the compiler is initialized when it is called.

    Processes that need the same kernel compile it once: the first one locks it, the others wait and
    load it. Locks are taken in the order of calls among kernels, which have no cycle, so there is
    no deadlock.
    """

    _impl_class = ContentCacheImpl
    _lock = NOT_LOCKED
    _is_open = False

    def __init__(self, function: Callable[..., object]) -> None:
        self._function = function

    def __getattr__(self, name: str) -> Any:
        """Locate the cache when an attribute of `FunctionCache` is first read.

        Most kernels are only called by other kernels: a process that loads machine code does not
        need their caches, which take 0.1 ms each.
        """
        if self._is_open:
            raise AttributeError(name)
        create: Callable[[object], None] = super().__init__
        create(self._function)
        self._is_open = True
        return getattr(self, name)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the compiled function for a signature; None: the caller compiles it."""
        compiled = self._load_or_miss(sig, target_context)
        if compiled is None:
            self._acquire()
            # Another process may have compiled it during the wait.
            compiled = self._load_or_miss(sig, target_context)
            if compiled is not None:
                self._release()
        return compiled

    def has(self, sig: Any, target_context: Any) -> bool:
        """Return whether the cache has machine code of a signature for this processor."""
        cache: Any = self
        try:
            kept = cache._cache_file._load_index()
        except Exception:  # damaged: `_load_or_miss` reports it
            return False
        return cache._index_key(sig, target_context.codegen()) in kept

    def _load_or_miss(self, sig: Any, target_context: Any) -> Any:
        load: Any = self._load_overload
        try:
            compiled = load(sig, target_context)
        except Exception as error:  # pickle and LLVM raise various types for damaged bytes
            log.warning("%s: the cache entry cannot be loaded: %r", self._name_on_disk(), error)
            with suppress(OSError):  # a damaged index would fail the save, too
                Path(self._cache_file._index_path).unlink()
            return None
        library = compiled and compiled.library
        # The library of another version of Numba may differ: then it is left as it is.
        if hasattr(library, "_get_module_for_linking") and getattr(library, "_shared_module", None):
            library._get_module_for_linking = partial(self._read_bitcode, sig, target_context)
            library._shared_module = None
        return compiled

    def _read_bitcode(self, sig: Any, target_context: Any) -> Any:
        """Return the LLVM bitcode of a cached kernel.

        Numba links it into kernels that call this one, and needs it only to compile them. Parsed,
        it takes ten times the memory of the machine code.

        Raises:
            RuntimeError: The cache has no such entry any more.
        """
        cache: Any = self
        payload = cache._cache_file.load(cache._index_key(sig, target_context.codegen()))
        if payload is None:
            raise RuntimeError(f"{self._name_on_disk()} was removed from the cache: start again")
        (_, _, (_, bitcode)), *_ = payload
        return llvm.parse_bitcode(bitcode)

    def save_overload(self, sig: Any, data: Any) -> None:
        """Write the compiled function of a signature, then release its lock."""
        save: Any = super().save_overload
        try:
            save(sig, data)
        except OSError:
            if os.access(self.cache_path, os.W_OK):
                raise  # otherwise a read-only cache without this kernel: every process compiles it
        finally:
            self._release()

    def _acquire(self) -> None:
        if self._lock != NOT_LOCKED:  # the compiler failed, and the lock was not released
            return
        with suppress(OSError):  # the cache is not writable, so every process compiles
            path = Path(self.cache_path) / f"{self._name_on_disk()}.lock"
            lock = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX)
            except OSError:
                os.close(lock)
                raise
            self._lock = lock

    def _release(self) -> None:
        lock, self._lock = self._lock, NOT_LOCKED
        if lock != NOT_LOCKED:
            os.close(lock)

    def _name_on_disk(self) -> str:
        implementation: Any = self._impl
        return str(implementation.filename_base)


def kernel(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a function at its first use, cache the machine code, and run it without the GIL.

    Kernels do not allocate (Numba refuses it), so arrays need no reference counts, which
    would take two atomic operations per array and call. Kernels of sends are five times faster
    without them.
    """
    compiled: Any = njit(nogil=True, _nrt=False)(function)
    if hasattr(compiled, "enable_caching"):  # not a plain function (NUMBA_DISABLE_JIT)
        compiled._cache = LoadingCache(function)
    made: Callable[P, R] = compiled
    return made


def entry(kernel: Callable[..., R], *args: object) -> Callable[..., R]:
    """Return the entry point of a kernel for arguments of exactly the types of `args`.

    A normal call examines the types of its arguments, which takes 2 us for arrays of records and
    tuples, three times as long as the rest of the call. The entry point does not check types: it
    would misread an array of another dtype, dimension or layout. Use it only if all arrays are
    created in one place; a read-only array needs its own entry point.
    """
    find = getattr(kernel, "compile", None)
    if find is None:  # a plain function (NUMBA_DISABLE_JIT)
        return kernel
    entry_point: Callable[..., R] = find(tuple(_type_of(arg) for arg in args))
    return entry_point


def _type_of(arg: object) -> object:
    """Return Numba's type of an argument, as `typeof` does.

    `typeof` derives the type of an array of records at each call, 0.3 ms for 20 columns.
    """
    if isinstance(arg, np.ndarray) and arg.dtype.fields:
        record = _record_type(arg.dtype, arg.dtype.isalignedstruct)
        return types.Array(record, arg.ndim, map_layout(arg), readonly=not arg.flags.writeable)
    if type(arg) is tuple:
        tuple_type: Any = types.BaseTuple
        return tuple_type.from_types([_type_of(each) for each in arg])
    type_of: Callable[[object], object] = typeof
    return type_of(arg)


@cache
def _record_type(dtype: np.dtype[np.void], is_aligned: bool) -> object:
    """Return Numba's type of a record; NumPy compares dtypes without their alignment."""
    record: object = from_dtype(dtype)
    return record
