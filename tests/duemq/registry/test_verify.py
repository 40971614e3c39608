"""`duemq store verify` on the progress of groups."""

from __future__ import annotations

from pathlib import Path

import pytest

from duemq.registry.config_file import ConfigFile
from duemq.registry.consumer_offsets import FILE_NAME, OffsetManager
from duemq.registry.verify import KIND, OFFSETS
from duemq_common.clock import FakeClock
from duemq_common.json_dialect import dumps, loads
from message_store.verify import verify_store
from tests.support.golden_stores import ALL_STORES, copy_golden_store
from tests.support.stores import open_store, put_one

HALF, TRANSACTIONS = "RMQ_SYS_TRANS_HALF_TOPIC", "CID_RMQ_SYS_TRANS"
REVIVE, REVIVALS = "rmq_sys_REVIVE_LOG_c", "CID_RMQ_SYS_REVIVE_GROUP"
HUGE = 2**63 - 1


def write(root: Path, table: dict[str, dict[int, int]], *, edited: bool) -> None:
    """Write consumerOffset.json; `edited`: the table was changed after its checksum."""
    offsets = OffsetManager(ConfigFile(root / "config" / FILE_NAME), FakeClock())
    offsets.load()
    for key, queues in ({} if edited else table).items():
        topic, _, group = key.partition("@")
        for queue_id, offset in queues.items():
            offsets.commit(group, topic, queue_id, offset)
    offsets.persist()
    if edited:
        path = root / "config" / FILE_NAME
        path.write_text(dumps(loads(path.read_text()) | {"offsetTable": table}))


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store whose offsets a test writes."""
    root = tmp_path_factory.mktemp("filled")
    with open_store(root) as store:
        for topic, count in (("T", 3), (HALF, 2), (REVIVE, 1)):
            for _ in range(count):
                put_one(store, topic)
    return root


@pytest.mark.finding("3D4")
@pytest.mark.parametrize("edited", [False, True])
@pytest.mark.parametrize(
    ("key", "queues", "severities"),
    [
        ("T@g", {0: 3}, []),
        ("T@g", {0: 4}, ["warning"]),
        ("T@g", {0: -1, 1: HUGE}, ["warning"]),  # queue 1 has no messages
        ("deleted@g", {0: 7}, []),
        ("../T@g", {0: 7}, []),
        (f"{HALF}@{TRANSACTIONS}", {0: 2}, []),
        (f"{HALF}@{TRANSACTIONS}", {0: 3, 5: 1}, ["error"] * 2),
        (f"{REVIVE}@{REVIVALS}", {0: 1}, []),
        (f"{REVIVE}@{REVIVALS}", {0: HUGE}, ["error"]),
        (f"none@{REVIVALS}", {0: 1}, ["error"]),
        (f"none@{REVIVALS}", {0: 0}, []),
    ],
)
def test_impossible_offsets_are_reported(
    filled: Path, key: str, queues: dict[int, int], severities: list[str], edited: bool
) -> None:
    for path in (filled / "config").glob(f"{FILE_NAME}*"):
        path.unlink()
    write(filled, {key: queues}, edited=edited)
    found = [f for f in verify_store(filled, parts=[OFFSETS]).findings if f.kind == KIND]
    changed = edited and "CID_RMQ_SYS" in key
    assert [f.severity for f in found] == ["error"] * changed + severities


@pytest.mark.parametrize("name", [store.name for store in ALL_STORES])
def test_apaches_stores_have_possible_offsets(name: str, tmp_path: Path) -> None:
    report = verify_store(copy_golden_store(name, tmp_path), parts=[OFFSETS])
    assert KIND not in report.counts
