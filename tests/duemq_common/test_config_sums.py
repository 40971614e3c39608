"""Checksums of configuration files: what the disk changed is noticed, what others wrote is not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from duemq_common import config_sums
from duemq_common.errors import CorruptStore
from duemq_common.json_dialect import (
    backup_path,
    dumps,
    load_config,
    loads,
    read_config,
    write_config,
)

OLD, NEW = {"a": 1}, {"a": 2}


def damage(path: Path, data: bytes) -> None:
    """Change the bytes of a file as a disk does: its times stay."""
    before = path.stat()
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "config" / "topics.json"
    write_config(found, dumps(OLD))
    write_config(found, dumps(NEW))
    return found


def flips(data: bytes) -> list[bytes]:
    return [
        data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]
        for at in range(len(data))
        for bit in range(8)
    ]


def test_a_file_as_written_is_not_damaged(path: Path) -> None:
    assert not config_sums.is_damaged(path, path.read_bytes())
    assert not config_sums.is_damaged(backup_path(path), backup_path(path).read_bytes())
    assert load_config(path, dict) == NEW


def test_every_flipped_bit_is_noticed_and_the_backup_used(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for data in flips(path.read_bytes()):
        damage(path, data)
        caplog.clear()
        assert load_config(path, dict) == OLD
        assert read_config(path) == dumps(OLD)
        assert f"{backup_path(path).name} is used" in caplog.text


def test_a_damaged_backup_is_not_used(path: Path) -> None:
    path.unlink()
    damage(backup_path(path), b'{"a": 7}')
    with pytest.raises(CorruptStore, match=config_sums.DAMAGED):
        load_config(path, dict)


def test_a_file_that_something_else_wrote_is_not_checked(path: Path) -> None:
    path.write_text('{"a":3}')
    os.utime(path, ns=(1, 1))
    assert load_config(path, dict) == {"a": 3}


@pytest.mark.parametrize("text", ["", "x", "0 1 2", "00000000 1 2 00000000\n"])
def test_a_damaged_checksum_checks_nothing(path: Path, text: str) -> None:
    (path.parent / config_sums.DIRECTORY / path.name).write_text(text)
    damage(path, b'{"a": 7}')
    assert load_config(path, dict) == {"a": 7}


def test_a_disk_that_takes_no_checksum_takes_the_file(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object) -> None:
        raise OSError(28, "no space")

    monkeypatch.setattr(config_sums, "open", refuse, raising=False)
    write_config(path, dumps(OLD))
    assert loads(path.read_text()) == OLD
    assert not config_sums.is_damaged(path, path.read_bytes())


def test_the_checksum_of_a_secret_file_is_secret(path: Path) -> None:
    path.chmod(0o600)
    config_sums.record(path, path.read_bytes())
    found = (path.parent / config_sums.DIRECTORY / path.name).stat()
    assert found.st_mode & 0o777 == 0o600
