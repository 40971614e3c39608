"""Stores of one broker group: a master and its replicas have the same records at the same offsets.

paths --grouped_stores--> the store of each group that an audit reads, and its copies
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from spark_reconciliation.scan.files import Root
from spark_reconciliation.scan.planning import files_of_row, plan_log

HEAD_BYTES: Final = 84
"""Fixed head of a record with IPv4 hosts: checksum, queue, offsets, times, hosts."""


@dataclass(frozen=True, slots=True)
class StoreGroup:
    """Stores with the same log.

    Attributes:
        store: The one whose log ends last, which an audit reads.
        copies: The others.
    """

    store: str
    copies: tuple[str, ...] = ()


def grouped_stores(paths: Sequence[str]) -> list[StoreGroup]:
    """Return the groups of stores, in the order of their first paths.

    Two stores belong together if the first record that both can have is the same. A replica may
    lack old files and the end of the log. A store without a record is alone.

    Raises:
        OSError: A directory cannot be read.
    """
    groups: list[list[str]] = []
    for path in dict.fromkeys(paths):
        for group in groups:
            if _same_log(Root(group[0]), Root(path)):
                group.append(path)
                break
        else:
            groups.append([path])
    return [_group_of(group) for group in groups]


def _group_of(paths: Sequence[str]) -> StoreGroup:
    if len(paths) == 1:
        return StoreGroup(paths[0])
    ends = {path: plan_log(Root(path)).end for path in paths}
    longest = max(paths, key=lambda path: ends[path])  # the first of several
    return StoreGroup(longest, tuple(path for path in paths if path != longest))


def _same_log(first: Root, second: Root) -> bool:
    """Return whether the records at the first common log offset are the same."""
    logs = [files_of_row(root, "commitlog") for root in (first, second)]
    if not all(logs):
        return False
    start = max(int(files[0].name) for files in logs)
    heads = []
    for root, files in zip((first, second), logs, strict=True):
        entry = next((e for e in reversed(files) if int(e.name) <= start), files[0])
        position = start - int(entry.name)
        heads.append(bytes(root.read(entry.path, position, position + HEAD_BYTES)))
    return heads[0] == heads[1] and len(heads[0]) == HEAD_BYTES and any(heads[0])
