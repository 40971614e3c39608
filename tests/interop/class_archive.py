"""Archives of the classes that Apache's Java programs load (AppCDS); each start takes less time.

    first start of a program   lists the classes that it loads
    second start               writes the archive, which takes some seconds, and uses it
    later starts               use it

Lists and archives are in the cache of the jars. Java ignores an archive of other jars.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Final

VARIABLE: Final = "APACHE_PEER_ARCHIVES"  # without it there are none, as in benchmarks
QUIET: Final = "-Xlog:disable"  # Java would log that it ignores an archive
WRITE_S: Final = 300


def archive_options(program: str, jars: Path) -> list[str]:
    """Return the options with which Java uses the archive of a program, or lists its classes.

    Args:
        program: Name that is unique for these jars.
        jars: Directory of jars, which are the first part of the class path.
    Raises:
        RuntimeError: Java did not write the archive; the message contains its output.
    """
    if VARIABLE not in os.environ:
        return []
    java = Path(shutil.which("java") or "java").resolve()
    version = hashlib.sha256(f"{java} {java.stat().st_mtime_ns}".encode()).hexdigest()[:12]
    archive = jars.with_name(f"{jars.name}-{program}-{version}.jsa")
    if not archive.exists():
        lists = [path for path in jars.parent.glob(f"{archive.stem}.classes*") if _is_filled(path)]
        if not lists:
            return [QUIET, f"-XX:DumpLoadedClassList={archive.with_suffix(_suffix('classes'))}"]
        with suppress(FileNotFoundError):  # another process has written the archive meanwhile
            _write(archive, lists[0], jars)
    return [QUIET, f"-XX:SharedArchiveFile={archive}"]


def _suffix(name: str) -> str:
    return f".{name}{os.getpid()}"


def _is_filled(path: Path) -> bool:
    """Return whether a program was started by this test process, or by one that has ended."""
    pid = path.suffix.removeprefix(".classes")
    return path.suffix == _suffix("classes") or not Path(f"/proc/{pid}").exists()


def _write(archive: Path, listed: Path, jars: Path) -> None:
    """Write the archive of listed classes; remove all lists.

    The program that lists its classes may run: the last line of its list may be incomplete.
    """
    part, classes = archive.with_suffix(_suffix("part")), archive.with_suffix(_suffix("list"))
    text = listed.read_text()
    classes.write_text(text[: text.rfind("\n") + 1])
    command = ["java", "-Xshare:dump", f"-XX:SharedClassListFile={classes}"]
    command += [f"-XX:SharedArchiveFile={part}", "-cp", f"{jars}/*"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WRITE_S, check=False)
    if not part.exists():
        raise RuntimeError(f"Java wrote no archive for {archive}:\n{done.stdout}{done.stderr}")
    part.rename(archive)
    for path in (classes, *jars.parent.glob(f"{archive.stem}.classes*")):
        path.unlink(missing_ok=True)
