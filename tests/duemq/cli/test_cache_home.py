"""Compiled code without a home directory: another place, a notice, and no foreign code."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from duemq.cli import cache_home
from duemq.cli.cache_home import (
    CACHE_VARIABLE,
    XDG_VARIABLE,
    replace_read_only_cache,
    use_writable_cache,
)
from duemq_common.errors import UsageError
from message_store import kernels
from tests.support.commands import duemq_process
from tests.support.homeless import remove_home

pytestmark = pytest.mark.finding("B17")


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the temporary directory of the test; no variable is set."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv(CACHE_VARIABLE, "")  # so that what is set is taken back
    monkeypatch.setenv(XDG_VARIABLE, "")
    return tmp_path


def test_the_named_directory_needs_no_home(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove_home(monkeypatch)
    monkeypatch.setenv(CACHE_VARIABLE, str(temporary / "kernels"))
    assert use_writable_cache() == ""
    assert kernels.cache_directory() == temporary / "kernels"


def test_a_place_that_can_be_written_stays(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(XDG_VARIABLE, str(temporary / "cache"))
    assert use_writable_cache() == ""
    assert not os.environ[CACHE_VARIABLE]
    assert (temporary / "cache" / "duemq" / "kernels").is_dir()
    assert kernels.CACHE_VARIABLE == CACHE_VARIABLE


@pytest.mark.parametrize("variable", [CACHE_VARIABLE, XDG_VARIABLE, "HOME"])
def test_a_place_that_cannot_be_written_is_named(
    temporary: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    (temporary / "file").touch()
    monkeypatch.setenv(variable, str(temporary / "file" / "home"))
    before = os.environ[CACHE_VARIABLE]
    notice = use_writable_cache()
    own = Path(os.environ[CACHE_VARIABLE])
    assert (own.parent, own.stat().st_mode & 0o777) == (temporary, 0o700)
    assert "cannot be written" in notice
    assert f"stored in {own}" in notice
    assert "Set DUEMQ_KERNEL_CACHE" in notice
    os.environ[CACHE_VARIABLE] = before
    use_writable_cache()
    assert Path(os.environ[CACHE_VARIABLE]) == own  # the next start finds it again


def test_a_complete_cache_may_be_read_only(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped = temporary / "shipped"
    shipped.mkdir()
    (shipped / "complete-0-0").touch()
    monkeypatch.setenv(CACHE_VARIABLE, str(shipped))
    monkeypatch.setattr(cache_home, "_fault", lambda path: "read-only" * (path == shipped))
    assert use_writable_cache() == ""
    assert os.environ[CACHE_VARIABLE] == str(shipped)
    # Complete for another version or processor: the caller compiles into another directory.
    assert "Set DUEMQ_KERNEL_CACHE" in replace_read_only_cache()
    assert Path(os.environ[CACHE_VARIABLE]).parent == temporary
    assert replace_read_only_cache() == ""


def test_without_any_writable_directory_a_broker_reports_it(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/proc/nope")
    monkeypatch.setattr(tempfile, "tempdir", "/proc/nope")
    assert use_writable_cache() == ""  # commands that load no kernels work
    with pytest.raises(UsageError, match="no temporary directory can be written: set DUEMQ_KERNEL"):
        replace_read_only_cache()


def test_code_that_others_can_write_is_not_loaded(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/proc/nope")
    planted = temporary / f"duemq-kernels-{os.getuid()}"
    planted.mkdir()
    planted.chmod(0o777)
    use_writable_cache()
    own = Path(os.environ[CACHE_VARIABLE])
    assert own != planted
    assert own.stat().st_mode & 0o022 == 0


def test_a_command_without_a_home_works_and_reports_it(tmp_path: Path) -> None:
    environment = {"HOME": "/proc/nope", XDG_VARIABLE: "", CACHE_VARIABLE: ""}
    done = duemq_process("config", "show", "--json", env=environment | {"TMPDIR": str(tmp_path)})
    assert done.returncode == 0, done.stderr
    [line] = done.stderr.splitlines()
    assert line.startswith("duemq: /proc/nope/.cache/duemq/kernels cannot be written")


def test_nothing_that_is_compiled_is_imported_before(tmp_path: Path) -> None:
    code = "import duemq.cli.app, sys; print('message_store.kernels' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout == "False\n"
