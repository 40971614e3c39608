"""Message classes and enum values from `descriptors.binpb`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper
from google.protobuf.message_factory import GetMessageClass

DESCRIPTORS: Final = Path(__file__).parent / "descriptors.binpb"


@cache
def _pool() -> DescriptorPool:
    """Return the one pool of all files: messages of different pools cannot be combined."""
    pool = DescriptorPool()
    for each in FileDescriptorSet.FromString(DESCRIPTORS.read_bytes()).file:
        pool.Add(each)
    return pool


def names_of(proto: str) -> Iterator[tuple[str, object]]:
    """Yield the names and values of the module that protoc would generate."""
    file = _pool().FindFileByName(proto)
    for name, message in file.message_types_by_name.items():
        yield name, GetMessageClass(message)
    for name, enum in file.enum_types_by_name.items():
        yield name, EnumTypeWrapper(enum)
        for value in enum.values:
            yield value.name, value.number
