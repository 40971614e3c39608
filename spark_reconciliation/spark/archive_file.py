"""Archive file of Java classes (AppCDS): name, check, and Java options that use it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

VARIABLE: Final = "DUEMQ_CLASS_ARCHIVE"
OFF: Final = "off"
QUIET: Final = "-Xlog:disable"
CHECKED: Final = "-XX:+VerifySharedSpaces"
UNUSED_S: Final = 30 * 86_400


@dataclass(frozen=True, slots=True)
class ClassArchive:
    """Location of the archive for one Java and one pyspark.

    Attributes:
        stem: First part of the file name; size and `.jsa` follow.
    """

    folder: Path
    stem: str

    @classmethod
    def of(cls, java: Path, environment: Mapping[str, str] = os.environ) -> ClassArchive | None:
        """Return the location for the Java that Spark starts, None if archives are switched off."""
        given = environment.get(VARIABLE, "")
        if given == OFF:
            return None
        spark = find_spec("pyspark")
        own = Path(spark.origin).parent if spark is not None and spark.origin else Path()
        jars = Path(environment.get("SPARK_HOME") or own) / "jars"
        try:
            home = Path(given or environment.get("XDG_CACHE_HOME") or Path.home() / ".cache")
            facts = [
                (str(path), path.stat().st_mtime_ns, path.stat().st_size)
                for path in (java.resolve(), jars.resolve())
            ]
        except (OSError, RuntimeError):  # no home directory, or no such Spark
            return None
        digest = hashlib.sha256(repr(facts).encode()).hexdigest()[:12]
        folder = home if given else home / "duemq" / "java"
        return cls(folder.absolute(), f"spark-{digest}")

    @property
    def file(self) -> Path | None:
        """Archive file, if it exists and is complete."""
        for path in self.folder.glob(f"{self.stem}-*.jsa"):
            with suppress(OSError):  # another process has removed it
                if path.name == f"{self.stem}-{path.stat().st_size}.jsa":
                    return path
        return None

    @property
    def options(self) -> str:
        """Options with which Java uses the archive; empty without an archive."""
        file = self.file
        return f'{QUIET} {CHECKED} -XX:SharedArchiveFile="{file}"' if file else ""

    def keep(self, made: Path) -> None:
        """Install a file written by Java as the archive; remove archives not used lately.

        Raises:
            OSError: A file cannot be renamed or removed.
        """
        with made.open("rb") as file:
            os.fsync(file.fileno())
        kept = self.folder / f"{self.stem}-{made.stat().st_size}.jsa"
        made.replace(kept)
        for old in self.folder.glob("spark-*.jsa"):
            is_own = old.name.startswith(f"{self.stem}-")
            if old != kept and (is_own or old.stat().st_atime < kept.stat().st_mtime - UNUSED_S):
                old.unlink(missing_ok=True)
