"""Kernels that a broker waits for before it opens its ports."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from duemq.cli import kernels
from message_store.config import StoreConfig
from message_store.kernels import registry
from message_store.kernels.registry import KernelEntry, every_kernel, kernels_of

DELIVERY = "send", "levels", "timers"


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[KernelEntry]:
    """Return the kernels that the start compiled, into an empty cache."""
    entries = list[KernelEntry]()

    def compile_kernels(kernels: Sequence[KernelEntry], report: object) -> None:
        entries.extend(kernels)

    monkeypatch.setattr(kernels, "compile_kernels", compile_kernels)
    monkeypatch.setattr(kernels, "_replace_read_only_cache", lambda: None)
    monkeypatch.setattr(registry, "is_complete", lambda: False)
    monkeypatch.setattr(registry, "set_complete", lambda: None)
    return entries


def test_a_new_store_waits_for_the_kernels_of_sends_and_deliveries(
    tmp_path: Path, compiled: list[KernelEntry]
) -> None:
    """The first message of a level was delivered 13 s after its send, and due after 5 s."""
    store = StoreConfig(root_text=str(tmp_path))
    preparation = kernels.compile_if_needed(store, is_replicated=False)
    assert compiled == kernels_of(DELIVERY)
    assert all(map(preparation.is_ready, DELIVERY))
    assert not preparation.is_ready("ingest")


@pytest.mark.parametrize("is_replicated", [True, False])
def test_an_existing_store_and_a_replica_wait_for_all_kernels(
    tmp_path: Path, compiled: list[KernelEntry], is_replicated: bool
) -> None:
    store = StoreConfig(root_text=str(tmp_path))
    if not is_replicated:
        store.commitlog_dir.mkdir()
    preparation = kernels.compile_if_needed(store, is_replicated=is_replicated)
    assert (tuple(compiled), preparation.is_done) == (every_kernel(), True)
