"""Error texts for missing requirements, which contain the action."""

from __future__ import annotations

from pathlib import Path

import pytest

from duemq_common.errors import UsageError
from spark_reconciliation.spark.requirements import check_memory, find_java, require_packages


def test_missing_packages_are_reported_with_their_extra() -> None:
    with pytest.raises(UsageError, match=r"pyspark is not installed: pip install 'duemq\[spark\]'"):
        require_packages(lambda name: None if name == "pyspark" else name)
    with pytest.raises(UsageError, match="pandas and fsspec are not installed"):
        require_packages(lambda name: None if name in ("pandas", "fsspec") else name)
    require_packages(lambda name: name)


def test_java_home_has_priority_over_the_path(tmp_path: Path) -> None:
    for folder in ("home/bin", "path"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "java").write_text("#!/bin/sh\n")
        (tmp_path / folder / "java").chmod(0o755)
    path, home = str(tmp_path / "path"), str(tmp_path / "home")
    assert find_java({"PATH": path, "JAVA_HOME": home}) == tmp_path / "home/bin/java"
    assert find_java({"PATH": path, "JAVA_HOME": "/nowhere"}) == tmp_path / "path/java"


def test_without_java_the_error_contains_the_action(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="set JAVA_HOME to it, or install it"):
        find_java({"PATH": str(tmp_path)})


@pytest.mark.parametrize("version", ["11.0.2", "1.8.0_292"])
def test_an_old_java_is_named_with_its_version(tmp_path: Path, version: str) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").touch()
    (tmp_path / "release").write_text(f'JAVA_VERSION="{version}"\n')
    major = "8" if version.startswith("1.8") else "11"
    with pytest.raises(UsageError, match=f"bin/java is version {major}: set JAVA_HOME"):
        find_java({"JAVA_HOME": str(tmp_path)})
    (tmp_path / "release").write_text('JAVA_VERSION="17.0.15"\n')
    assert find_java({"JAVA_HOME": str(tmp_path)}) == tmp_path / "bin" / "java"


@pytest.mark.parametrize(
    ("memory", "text"),
    [
        ("2g", ""),
        ("512m", ""),
        ("512", ""),
        ("600MB", ""),
        ("511m", "Spark needs 512m or more"),
        ("10m", "Spark needs 512m or more"),
        ("1024k", "Spark needs 512m or more"),
        ("much", "must be a size such as 2g"),
        ("2 g", "must be a size such as 2g"),
    ],
)
def test_too_little_memory_is_refused_with_the_number_to_set(memory: str, text: str) -> None:
    if not text:
        check_memory(memory)
        return
    with pytest.raises(UsageError, match=f"--memory {memory}: {text}"):
        check_memory(memory)
