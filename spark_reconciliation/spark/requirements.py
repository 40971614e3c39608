"""Requirements of Spark, and the remedy if one is missing."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from duemq_common.errors import UsageError
from duemq_common.existence import is_file

PACKAGES: Final = ("pyspark", "pyarrow", "pandas", "fsspec", "jinja2")
WHY_PACKAGES: Final = "{missing} not installed: pip install 'duemq[spark]'"
JAVA_MIN: Final = 17
WHY_JAVA: Final = (
    "Spark needs Java 17 or newer, and {found}: set JAVA_HOME to it, or install it "
    "(Debian, Ubuntu: apt-get install openjdk-17-jre-headless; macOS: brew install openjdk@17; "
    "anywhere: pip install install-jdk, then python -m jdk install 17)"
)

MEMORY: Final = re.compile(r"(\d+)([kmgt]?)b?", re.IGNORECASE)
MEMORY_MIN: Final = 512 << 20  # Spark refuses less than 450 MiB, of which Java keeps a part
UNIT_BITS: Final = {"k": 10, "m": 20, "": 20, "g": 30, "t": 40}


def require_packages(find: Callable[[str], object | None] = find_spec) -> None:
    """Raise UsageError unless all packages of the extra `spark` are installed."""
    missing = [name for name in PACKAGES if find(name) is None]
    if missing:
        raise UsageError(WHY_PACKAGES.format(missing=_listed(missing)))


def _listed(names: list[str]) -> str:
    return f"{' and '.join(names)} {'is' if len(names) == 1 else 'are'}"


def find_java(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the path of the `java` that Spark would start.

    Raises:
        UsageError: There is no Java, or it is too old; the text has the remedy.
    """
    home = environment.get("JAVA_HOME", "")
    java = Path(home) / "bin" / "java"
    if not home or not is_file(java):
        path = shutil.which("java", path=environment.get("PATH"))
        if path is None:
            raise UsageError(WHY_JAVA.format(found="there is none"))
        java = Path(path)
    version = java_version(java)
    if version is not None and version < JAVA_MIN:
        raise UsageError(WHY_JAVA.format(found=f"{java} is version {version}"))
    return java


def check_memory(text: str) -> None:
    """Check the memory of the Java process.

    Raises:
        UsageError: It is no size, or less than Spark needs; the text has the number to set.
    """
    size = MEMORY.fullmatch(text)
    if size is None:
        raise UsageError(f"--memory {text}: must be a size such as 2g")
    if int(size[1]) << UNIT_BITS[size[2].lower()] < MEMORY_MIN:
        raise UsageError(f"--memory {text}: Spark needs 512m or more")


def java_version(java: Path) -> int | None:
    """Return the major version in the file `release` of a Java; None without one."""
    try:
        text = (java.resolve().parent.parent / "release").read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None
    version = re.search(r'JAVA_VERSION="(?:1\.)?(\d+)', text)
    return int(version[1]) if version else None
