"""The name server's key-value tables."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from duemq.namesrv import kv_config
from duemq.namesrv.kv_config import KVConfig
from duemq.registry.config_file import ConfigFile
from duemq_common import json_dialect
from duemq_common.errors import CorruptStore, RequestError


def loaded(path: Path) -> KVConfig:
    kv = KVConfig(ConfigFile(path))
    kv.load()
    return kv


def test_values_survive_a_restart(tmp_path: Path) -> None:
    kv = loaded(tmp_path / "kv.json")

    async def main() -> None:
        await kv.put("N", "b", "2")
        await kv.put("N", "a", "1")
        await kv.put("N", "a", "3")
        await kv.put("M", "c", "4")
        await kv.delete("M", "c")
        await kv.delete("M", "c")

    asyncio.run(main())
    again = loaded(tmp_path / "kv.json")
    for each in (kv, again):
        assert each.table("N") == {"a": "3", "b": "2"}
        assert each.table("M") is None
        assert (each.get("N", "a"), each.get("N", "x"), each.get("X", "a")) == ("3", None, None)


def test_apaches_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "kv.json").write_text('{"configTable":{"ORDER_TOPIC_CONFIG":{"T":"a:4"}}}')
    assert loaded(tmp_path / "kv.json").get("ORDER_TOPIC_CONFIG", "T") == "a:4"


@pytest.mark.parametrize("text", ["{", '{"configTable":[1]}', '{"configTable":{"N":"x"}}'])
def test_a_file_that_cannot_be_used_is_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "kv.json").write_text(text)
    with pytest.raises(CorruptStore):
        loaded(tmp_path / "kv.json")


def test_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_config, "ENTRIES_MAX", 1)
    kv = KVConfig()
    asyncio.run(kv.put("N", "a", "1"))
    asyncio.run(kv.put("N", "a", "2"))
    for key, value in (("b", "1"), ("a", "x" * 70_000)):
        with pytest.raises(RequestError):
            asyncio.run(kv.put("N", key, value))
    assert kv.table("N") == {"a": "2"}


def test_a_disk_that_refuses_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, text: str) -> None:
        raise OSError("full")

    monkeypatch.setattr(json_dialect, "write_config", full)
    kv = loaded(tmp_path / "kv.json")
    with pytest.raises(RequestError, match="full"):
        asyncio.run(kv.put("N", "a", "1"))
    assert kv.get("N", "a") is None
