"""Requirements of Spark, and the remedy if one is missing."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from duemq_common.errors import UsageError
from duemq_common.existence import is_file

PACKAGES: Final = ("pyspark", "pyarrow", "pandas", "fsspec", "jinja2")
WHY_PACKAGES: Final = "{missing} not installed: pip install 'duemq[spark]'"
WHY_JAVA: Final = (
    "Spark needs Java 17 or newer, and there is none: set JAVA_HOME to it, or install it "
    "(Debian, Ubuntu: apt-get install openjdk-17-jre-headless; macOS: brew install openjdk@17; "
    "anywhere: pip install install-jdk, then python -m jdk install 17)"
)


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
        UsageError: There is no Java; the text has the remedy.
    """
    home = environment.get("JAVA_HOME", "")
    if home and is_file(Path(home) / "bin" / "java"):
        return Path(home) / "bin" / "java"
    java = shutil.which("java", path=environment.get("PATH"))
    if java is None:
        raise UsageError(WHY_JAVA)
    return Path(java)
