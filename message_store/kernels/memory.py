"""Block copies, whole-word loads and bit counts for compiled code.

NumPy slice assignment takes about 40 ns in a kernel for any size, and a message consists of many
small pieces. These intrinsics compile to one memcpy, one load or one instruction, without bounds
checks: the caller must check positions and sizes.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils as _cgutils
from numba.core import types
from numba.extending import intrinsic

cgutils: Any = _cgutils  # numba has no types


@intrinsic
def copy_bytes(_context: Any, out: Any, out_pos: Any, data: Any, pos: Any, size: Any) -> Any:
    """Copy data[pos:pos+size] to out[out_pos:]; u1 arrays, i8 numbers, no overlap."""
    signature = types.void(out, types.int64, data, types.int64, types.int64)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        target = cgutils.create_struct_proxy(signature.args[0])(context, builder, args[0])
        source = cgutils.create_struct_proxy(signature.args[2])(context, builder, args[2])
        to = builder.gep(target.data, [args[1]])
        start = builder.gep(source.data, [args[3]])
        cgutils.raw_memcpy(builder, to, start, args[4], 1)
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def load_u4(_context: Any, data: Any, pos: Any) -> Any:
    """Return the four bytes at data[pos] as one u4, in the machine's byte order."""
    return types.uint32(data, types.int64), _load(32)


@intrinsic
def load_u8(_context: Any, data: Any, pos: Any) -> Any:
    """Return the eight bytes at data[pos] as one u8, in the machine's byte order."""
    return types.uint64(data, types.int64), _load(64)


def _load(bits: int) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        source = cgutils.create_struct_proxy(signature.args[0])(context, builder, args[0])
        start = builder.gep(source.data, [args[1]])
        word = ir.IntType(bits).as_pointer()
        return builder.load(builder.bitcast(start, word), align=1)

    return generate


@intrinsic
def trailing_zeros(_context: Any, word: Any) -> Any:
    """Return the number of zero bits below the lowest set bit of a u8; 64 for 0."""
    return types.int64(types.uint64), _count_zeros("cttz")


@intrinsic
def leading_zeros(_context: Any, word: Any) -> Any:
    """Return the number of zero bits above the highest set bit of a u8; 64 for 0."""
    return types.int64(types.uint64), _count_zeros("ctlz")


def _count_zeros(name: str) -> Any:
    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        word, bit = ir.IntType(64), ir.IntType(1)
        kind = ir.FunctionType(word, [word, bit])
        count = cgutils.get_or_insert_function(builder.module, kind, f"llvm.{name}.i64")
        return builder.call(count, [args[0], bit(0)])

    return generate
