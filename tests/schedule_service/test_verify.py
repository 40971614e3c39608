"""`duemq store verify` on the levels' progress."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from duemq_common.clock import FakeClock
from duemq_common.json_dialect import dumps, loads
from message_store.recovery.log_identity import LastRecord
from message_store.verify import verify_store
from schedule_service.recovery import decode_saved, encode_saved
from schedule_service.verify import KIND, LEVELS
from tests.support.level_rig import level_service


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store with 5 delivered messages of level 1 and 4 pending ones of level 3."""
    root = tmp_path_factory.mktemp("whole")

    async def steps() -> None:
        async with level_service(root, FakeClock()) as rig:
            rig.send(1, count=5)
            rig.send(3, count=4)
            await rig.advance(1_000)

    asyncio.run(steps())
    return root


def test_the_due_time_of_the_last_unit_of_a_file_counts(tmp_path: Path) -> None:
    units = 50  # of one file

    async def steps() -> None:
        async with level_service(tmp_path, FakeClock()) as rig:
            rig.send(3, count=units)

    asyncio.run(steps())
    path = tmp_path / "config" / "delayOffset.json"
    path.write_text(dumps({"offsetTable": {3: units}}))
    report = verify_store(tmp_path, parts=[LEVELS])
    (finding,) = [finding for finding in report.findings if finding.kind == KIND]
    assert f"has offset {units}, but the message before it is due at" in finding.text


def offsets_only(offsets: dict[int, int]) -> Callable[[str], str]:
    return lambda text: dumps({"offsetTable": offsets})


def edited(text: str) -> str:
    return dumps(loads(text) | {"offsetTable": {1: 5, 3: 1}})


def of_0_1_0(text: str) -> str:
    members = ("commitLogOffset", "dataVersion", "deliveredAhead", "offsetTable")
    return dumps({name: loads(text)[name] for name in members})


def of_another_log(text: str) -> str:
    return encode_saved(replace(decode_saved(loads(text)), last_record=LastRecord(0, 1)))


def from_the_future(text: str) -> str:
    return encode_saved(replace(decode_saved(loads(text)), log_offset=1 << 40))


@pytest.mark.finding("3D4")
@pytest.mark.parametrize(
    ("change", "severities"),
    [
        (str, []),
        (offsets_only({1: 5, 3: 0}), []),
        (offsets_only({1: 6_012, 3: 6_012}), ["error", "error"]),
        (offsets_only({1: 5, 3: 2**63 - 1}), ["error"]),
        (offsets_only({1: 5, 7: 1}), ["error"]),  # there is no such queue
        (offsets_only({1: 5, 3: 4}), ["warning"]),  # not due before the end of the log
        (offsets_only({1: -5, 3: -1}), ["error"]),
        (edited, ["error"]),
        (of_0_1_0, ["warning"]),
        (of_another_log, ["error"]),
        (from_the_future, ["warning"]),
    ],
)
def test_impossible_and_unproved_offsets_are_reported(
    tmp_path: Path, whole: Path, change: Callable[[str], str], severities: list[str]
) -> None:
    root = shutil.copytree(whole, tmp_path / "store")
    path = root / "config" / "delayOffset.json"
    path.write_text(change(path.read_text()))
    report = verify_store(root, parts=[LEVELS])
    found = [finding for finding in report.findings if finding.kind == KIND]
    assert [finding.severity for finding in found] == severities
    assert report.ok == ("error" not in severities)
