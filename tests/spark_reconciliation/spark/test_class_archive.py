"""The archive of Java classes: created once, used by every start of Spark, harmless if damaged."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from spark_reconciliation.spark import class_archive
from spark_reconciliation.spark.archive_file import VARIABLE, ClassArchive
from spark_reconciliation.spark.class_archive import make, make_later
from spark_reconciliation.spark.requirements import find_java

ROOT = Path(__file__).parents[3]
MAPPED = """
from pathlib import Path
from spark_reconciliation.spark.session import local_session
spark = local_session(cores=1, memory="512m", with_format=False, light=True)
java = spark.sparkContext._gateway.proc.pid
print(spark.range(3).count(), "/spark-" in Path(f"/proc/{java}/maps").read_text())
spark.stop()
"""


@pytest.fixture
def archive(tmp_path: Path) -> ClassArchive:
    java = tmp_path / "java"
    java.write_text("a program")
    found = ClassArchive.of(java, {VARIABLE: str(tmp_path / "archives")})
    assert found is not None
    return found


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, VARIABLE: str(folder), "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        timeout=600,
        env=env,
        cwd=folder,
        check=False,
    )


@pytest.mark.extended
@pytest.mark.spark
def test_java_uses_the_archive_of_an_earlier_run(tmp_path: Path) -> None:
    find_java()  # installed in CI
    tmp_path = tmp_path / "a folder"
    tmp_path.mkdir()
    made = run(tmp_path, "-m", "spark_reconciliation.spark.class_archive")
    assert (made.returncode, made.stdout) == (0, ""), made.stderr
    [file] = tmp_path.glob("*.jsa")
    assert file.name.endswith(f"-{file.stat().st_size}.jsa")
    assert run(tmp_path, "-c", MAPPED).stdout == "3 True\n"
    os.chmod(file, 0o644)
    with file.open("r+b") as bytes_:  # damaged: Java silently continues without it
        bytes_.seek(file.stat().st_size // 2)
        bytes_.write(b"\xff" * 4_096)
    flipped = run(tmp_path, "-c", MAPPED)
    assert flipped.stdout == "3 False\n"
    assert not list(tmp_path.glob("hs_err*"))


def test_an_archive_is_for_one_java_and_one_spark(tmp_path: Path, archive: ClassArchive) -> None:
    where = {VARIABLE: str(archive.folder)}
    assert ClassArchive.of(tmp_path / "java", where) == archive
    assert ClassArchive.of(tmp_path / "java", where | {"SPARK_HOME": "/none"}) is None
    (tmp_path / "jars").mkdir()
    spark = ClassArchive.of(tmp_path / "java", where | {"SPARK_HOME": str(tmp_path)})
    assert spark is not None
    assert spark.stem != archive.stem
    (tmp_path / "java").write_text("a newer program")
    newer = ClassArchive.of(tmp_path / "java", where)
    assert newer is not None
    assert newer.stem != archive.stem
    assert ClassArchive.of(tmp_path / "java", {VARIABLE: "off"}) is None
    home = ClassArchive.of(tmp_path / "java", {"XDG_CACHE_HOME": "/cache"})
    assert home is not None
    assert home.folder == Path("/cache/duemq/java")


def test_only_the_newest_is_kept(archive: ClassArchive) -> None:
    archive.folder.mkdir()
    for name, days in (("spark-other-1.jsa", 1), ("spark-old-1.jsa", 40)):
        (archive.folder / name).write_bytes(b"x")
        at_s = time.time() - days * 86_400
        os.utime(archive.folder / name, (at_s, at_s))
    for content in (b"first", b"second one"):
        made = archive.folder / "made.new"
        made.write_bytes(content)
        archive.keep(made)
    assert archive.file is not None
    assert archive.file.read_bytes() == b"second one"
    assert archive.options.endswith(f'="{archive.file}"')
    names = {path.name for path in archive.folder.iterdir()}
    assert names == {"spark-other-1.jsa", archive.file.name}
    archive.file.write_bytes(b"cut")  # Java would crash with it
    assert archive.file is None
    assert archive.options == ""


def test_only_one_process_creates_it(
    archive: ClassArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[Path] = []

    def create(made: Path) -> None:
        trained.append(made)
        assert not make(archive)  # while another process creates it
        made.write_bytes(b"classes")

    monkeypatch.setattr(class_archive, "_make_archive", create)
    assert make(archive)
    assert make(archive)
    assert len(trained) == 1


def test_a_java_that_writes_no_archive_is_harmless(
    archive: ClassArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(class_archive, "_make_archive", lambda made: None)
    assert not make(archive)
    assert archive.options == ""


def test_it_is_created_after_an_audit_unless_it_exists(
    archive: ClassArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(
        class_archive,
        "subprocess",
        SimpleNamespace(DEVNULL=-3, Popen=lambda command, **_: started.append(command)),
    )
    assert not make_later(None)
    assert make_later(archive)
    archive.folder.mkdir()
    (archive.folder / "made.new").write_bytes(b"classes")
    archive.keep(archive.folder / "made.new")
    assert not make_later(archive)
    [words] = started
    assert words[1:] == ["-P", "-m", "spark_reconciliation.spark.class_archive", "--idle"]
