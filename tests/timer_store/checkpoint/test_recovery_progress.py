"""Any numbers in timercheck and duemq.timers.json: no timer is lost, doubled or early."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from message_store.clock import FakeClock
from message_store.json_dialect import dumps, loads
from tests.support.timer_rig import TimerRig
from timer_store.checkpoint.snapshot import Check, decode_check, encode_check

COUNT, DELIVERED = 40, 12
START_MS = FakeClock().now_ms()
PHASES = (Phase.explicit, Phase.reuse, Phase.generate)  # an example takes seconds
FILES = ("timercheck", "duemq.timers.json", "duemq.timers.json.bak")
CHANGES = st.one_of(
    st.integers(-60, 60), st.sampled_from([-(10**6), 10**6, -(2**40), 2**40, 2**62, -(2**62)])
)


def fill(root: Path, shift: int) -> None:
    rig = TimerRig(root).open()
    for number in range(COUNT):
        due_ms = START_MS + 1_000 * (number + shift) + 500
        rig.put(due_ms, body=b"%d" % number, UNIQ_KEY=f"K{number}")
    rig.advance(1_000 * DELIVERED)
    rig.close()


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store with delivered and pending timers, next to another one."""
    root = tmp_path_factory.mktemp("base")
    fill(root / "store", 0)
    fill(root / "other", 5)
    return root / "store"


def check(root: Path) -> None:
    """Deliver everything; compare with what was sent."""
    clock = FakeClock(START_MS + 1_000 * DELIVERED)
    rig = TimerRig(root, clock).open()
    rig.advance(0)
    assert len(rig.bodies()) == DELIVERED
    rig.advance(1_000 * COUNT)
    assert Counter(rig.bodies()) == {b"%d" % number: 1 for number in range(COUNT)}
    for record in rig.delivered("T", 0):
        number = int(record.body)
        assert record.store_ms >= START_MS + 1_000 * number + 500
    rig.kill()


def copied(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("edited") / "store"
    shutil.copytree(base, root)
    return root


@pytest.mark.finding("3D4")
@settings(phases=PHASES, max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(read=CHANGES, pos=CHANGES, queue=CHANGES, ours=st.booleans())
def test_any_numbers_of_timercheck(
    base: Path, tmp_path_factory: pytest.TempPathFactory,
    read: int, pos: int, queue: int, ours: bool,
) -> None:  # fmt: skip
    """`ours`: the checkpoint of DueMQ is changed in the same way."""
    root = copied(base, tmp_path_factory)
    config = root / "config"
    found = decode_check((config / FILES[0]).read_bytes())
    assert found is not None
    limit = 2**63 - 1
    changed = Check(
        max(min(found.read_ms + 1_000 * read, limit), -limit),
        max(min(found.log_pos + 52 * pos, limit), -limit),
        max(min(found.queue_offset + queue, limit), -limit),
        max(min(found.queue_offset + queue, limit), -limit),
    )
    (config / FILES[0]).write_bytes(encode_check(changed))
    if ours:
        value: dict[str, Any] = loads((config / FILES[1]).read_text())
        value["check"]["lastReadTimeMs"] = changed.read_ms
        value["check"]["lastTimerQueueOffset"] = changed.queue_offset
        (config / FILES[1]).write_text(dumps(value))
    check(root)


@pytest.mark.finding("3D4")
@pytest.mark.parametrize("names", [FILES, FILES[:1], FILES[1:]], ids=["all", "timercheck", "ours"])
def test_files_of_another_store(
    base: Path, tmp_path_factory: pytest.TempPathFactory, names: tuple[str, ...]
) -> None:
    root = copied(base, tmp_path_factory)
    for name in names:
        other = base.parent / "other" / "config" / name
        if other.exists():
            shutil.copy(other, root / "config" / name)
    check(root)
