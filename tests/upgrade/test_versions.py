"""Stores go from the former version to the present one and back; see docs/reference/versions.md."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.interop.store_work import TOPIC, verify
from tests.interop.test_pop_stores import KEYS as POP_KEYS
from tests.interop.test_pop_stores import PopLedger
from tests.interop.timer_work import KEYS
from tests.support.duemq_server import DueMQ
from tests.support.server import Server
from tests.support.sparse_files import unpack
from tests.upgrade.former import Former, install_former
from tests.upgrade.record import ARCHIVE, CONTENTS, FIRST_ARCHIVE
from tests.upgrade.store_contents import StoreContents


@pytest.fixture(scope="module")
def former(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install_former(tmp_path_factory.mktemp("former"))


@pytest.mark.parametrize("path", [ARCHIVE, FIRST_ARCHIVE], ids=["former", "0.1.0"])
def test_the_present_version_delivers_what_the_former_left(path: Path, tmp_path: Path) -> None:
    """In a recorded store, which needs no history. The delays take seconds."""
    unpack(path, tmp_path)
    contents = StoreContents.from_json((tmp_path / CONTENTS).read_text())
    with DueMQ(tmp_path / "present", store_dir=tmp_path / "store", keys=KEYS) as present:
        contents.end_all(present)
        contents.wait(present)
        contents.check(present, is_gapless=False)
    assert " ERROR " not in (tmp_path / "present" / "broker.log").read_text()
    verify(tmp_path / "store")


@pytest.mark.extended
@pytest.mark.parametrize("end", [Server.stop, Server.kill], ids=["stopped", "killed"])
def test_a_store_changes_its_version_and_back(
    end: Callable[[Server], None], former: Path, tmp_path: Path
) -> None:
    contents, store = StoreContents(), tmp_path / "store"
    old = Former(former, tmp_path / "old", store, KEYS)
    new = DueMQ(tmp_path / "new", store_dir=store, keys=KEYS)
    with old:
        old.create_topic(TOPIC)
        contents.add_schedule(old)
        contents.add(old, "first")
        end(old)
    with new:
        contents.end_all(new)
        contents.add(new, "second")
        end(new)
    with old:
        contents.end_all(old)
        contents.wait(old)
        contents.check(old)
    with new:
        contents.check(new)
    verify(store)


@pytest.mark.extended
@pytest.mark.parametrize("first", ["former", "present"])
def test_a_store_changes_its_version_during_a_pop(first: str, former: Path, tmp_path: Path) -> None:
    """One message is acknowledged at the other version, with the handle of the first."""
    ledger, store = PopLedger(), tmp_path / "store"
    old = Former(former, tmp_path / "old", store, POP_KEYS)
    new = DueMQ(tmp_path / "new", store_dir=store, keys=POP_KEYS)
    before, after = (old, new) if first == "former" else (new, old)
    with before:
        ledger.fill(before)
        before.stop()
    with after:
        assert ledger.kept is not None
        ledger.acknowledge(after, ledger.kept)
        ledger.drain(after)
        ledger.check(after)
    verify(store)
