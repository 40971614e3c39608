"""`duemq store copy`: a consistent copy of a store, also while its broker runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from msgspec.structs import asdict

from duemq.cli.output import console, print_json
from duemq_common.config import Properties, from_properties
from message_store.config import StoreConfig
from message_store.store_copy import copy_store

COMMITLOG_KEY = "storePathCommitLog"


def copy(
    directory: Path, target: Path, properties: Properties, *, links: bool, as_json: bool
) -> None:
    """Copy a store and print what was copied."""
    commitlog = None
    if COMMITLOG_KEY in properties:
        config = from_properties(StoreConfig, properties)
        commitlog = replace(config, root_text=str(directory)).commitlog_dir
    summary = copy_store(directory, target, commitlog=commitlog, links=links)
    if as_json:
        print_json({"store": str(directory), "copy": str(target), **asdict(summary)})
        return
    out = console()
    linked = f", {summary.linked:,} of them hard links" if summary.linked else ""
    out.print(f"{summary.files:,} files ({summary.bytes:,} bytes) copied to {target}{linked}.")
    if summary.was_running:
        out.print(
            "The broker was running: the first start on the copy rebuilds the timers from the log."
        )
    if summary.linked:
        out.print("The copy shares files with the store: move it to other storage.")
