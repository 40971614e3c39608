"""SIGBUS handler in machine code: replaces a guarded page with zeros and continues.

The operating system raises SIGBUS in a thread that touches a page of a mapped file that cannot be
read. The handler runs in the middle of that instruction, possibly without the GIL,
so it must not run Python: it is machine code that calls only mmap and sigaction.

    address in a guarded mapping   map a page of zeros there, record its address, return
    any other address              restore the previous handler, to which the fault then goes

Word numbers of the table of i64 that it shares with `page_guard`:

    0  rows in use        1  pages replaced so far
    ROWS + 3 i            first address, end address, protection of a mapping; 0, 0 when free
    RING + n % RING_SIZE  address of replaced page n; 0 until it is written
"""

from __future__ import annotations

import ctypes
import mmap
import signal
from typing import Any, Final

import llvmlite.binding as llvm
import numpy as np
import numpy.typing as npt
from llvmlite import ir

IN_USE: Final = 0
REPLACED: Final = 1
ROWS: Final = 8
ROW_WORDS: Final = 3
ROWS_MAX: Final = 65_536  # as many mappings as the kernel gives a process (vm.max_map_count)
RING: Final = ROWS + ROWS_MAX * ROW_WORDS
RING_SIZE: Final = 1 << 20  # pages between two calls of `update`: more than 1 GiB has
WORDS: Final = RING + RING_SIZE
PAGE_BYTES: Final = mmap.PAGESIZE

MAP_FIXED: Final = 0x10
SA_SIGINFO: Final = 0x4
SA_ONSTACK: Final = 0x0800_0000
FAULT_ADDRESS: Final = 16  # byte of siginfo_t
SIGNAL_SET_BYTES: Final = 128
MAP_FAILED: Final = -1

WORD, NUMBER, POINTER = ir.IntType(64), ir.IntType(32), ir.IntType(8).as_pointer()


class SignalAction(ctypes.Structure):
    """The C library's `struct sigaction` on 64-bit Linux."""

    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_byte * SIGNAL_SET_BYTES),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


class Installed:
    """The handler of this process, and the objects that must live as long as it.

    Attributes:
        table: (WORDS,) i8, shared with the handler; unused pages use no memory.

    Raises:
        OSError: The handler cannot be installed.
    """

    def __init__(self) -> None:
        self.table: npt.NDArray[np.int64] = np.zeros(WORDS, np.int64)
        self._before = SignalAction()
        self._engine = _compiled(self.table.ctypes.data, ctypes.addressof(self._before))
        code = self._engine.get_function_address("on_bus_error")
        action = SignalAction(handler=code, flags=SA_SIGINFO | SA_ONSTACK)
        library = ctypes.CDLL(None, use_errno=True)
        before = ctypes.byref(self._before)
        if library.sigaction(int(signal.SIGBUS), ctypes.byref(action), before):
            raise OSError(ctypes.get_errno(), "no handler of SIGBUS can be installed")


def _compiled(table: int, before: int) -> Any:
    """Return the engine that holds the handler's machine code."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    module = llvm.parse_assembly(str(_module(table, before)))
    module.verify()
    machine = llvm.Target.from_default_triple().create_target_machine()
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    return engine


def _module(table: int, before: int) -> ir.Module:
    """Return the handler's code: search the rows, then replace the page or restore the handler."""
    module = ir.Module("bus_error")
    kind = ir.FunctionType(ir.VoidType(), [NUMBER, POINTER, POINTER])
    function = ir.Function(module, kind, "on_bus_error")
    names = ("entry", "search", "compare", "next", "replace", "note", "foreign")
    blocks = {name: function.append_basic_block(name) for name in names}
    signal_number, info, _ = function.args
    build = ir.IRBuilder(blocks["entry"])
    position = build.gep(info, [WORD(FAULT_ADDRESS)])
    address = build.load(build.bitcast(position, WORD.as_pointer()))
    in_use = build.load(_word_at(build, table, WORD(IN_USE)))
    build.branch(blocks["search"])
    protection = _search(build, blocks, table, address, in_use)
    _replace(build, blocks, table, address, protection)
    build.position_at_end(blocks["foreign"])
    kind = ir.FunctionType(NUMBER, [NUMBER, POINTER, POINTER])
    handler = build.inttoptr(WORD(before), POINTER)
    nothing = build.inttoptr(WORD(0), POINTER)
    build.call(ir.Function(module, kind, "sigaction"), [signal_number, handler, nothing])
    build.ret_void()
    return module


def _word_at(build: ir.IRBuilder, table: int, index: Any) -> Any:
    position = build.add(WORD(table), build.mul(index, WORD(8)))
    return build.inttoptr(position, WORD.as_pointer())


def _search(
    build: ir.IRBuilder, blocks: dict[str, ir.Block], table: int, address: Any, in_use: Any
) -> Any:
    """Find the row of the mapping that contains `address`; return its protection."""
    build.position_at_end(blocks["search"])
    number = build.phi(WORD)
    number.add_incoming(WORD(0), blocks["entry"])
    build.cbranch(build.icmp_signed("<", number, in_use), blocks["compare"], blocks["foreign"])

    build.position_at_end(blocks["compare"])
    row = build.add(build.mul(number, WORD(ROW_WORDS)), WORD(ROWS))
    pointers = [_word_at(build, table, build.add(row, WORD(i))) for i in range(ROW_WORDS)]
    first, end, protection = (build.load(pointer) for pointer in pointers)
    inside = build.and_(
        build.icmp_unsigned("<=", first, address), build.icmp_unsigned("<", address, end)
    )
    build.cbranch(inside, blocks["replace"], blocks["next"])

    build.position_at_end(blocks["next"])
    number.add_incoming(build.add(number, WORD(1)), blocks["next"])
    build.branch(blocks["search"])
    return protection


def _replace(
    build: ir.IRBuilder, blocks: dict[str, ir.Block], table: int, address: Any, protection: Any
) -> None:
    """Map zeros in place of the page of `address`, record the page, return from the handler.

    The page is counted before it is replaced, so that no thread uses the zeros as data. Its address
    is recorded afterwards, because then another thread may map the file there again.
    """
    build.position_at_end(blocks["replace"])
    count = build.atomic_rmw("add", _word_at(build, table, WORD(REPLACED)), WORD(1), "seq_cst")
    page = build.and_(address, WORD(-PAGE_BYTES))
    kind = ir.FunctionType(POINTER, [POINTER, WORD, NUMBER, NUMBER, NUMBER, WORD])
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_FIXED
    arguments = [
        build.inttoptr(page, POINTER),
        WORD(PAGE_BYTES),
        build.trunc(protection, NUMBER),
        NUMBER(flags),
        NUMBER(-1),
        WORD(0),
    ]
    mapped = build.call(ir.Function(build.module, kind, "mmap"), arguments)
    refused = build.icmp_signed("==", build.ptrtoint(mapped, WORD), WORD(MAP_FAILED))
    build.cbranch(refused, blocks["foreign"], blocks["note"])

    build.position_at_end(blocks["note"])
    slot = build.add(build.and_(count, WORD(RING_SIZE - 1)), WORD(RING))
    build.store(page, _word_at(build, table, slot))
    build.ret_void()
