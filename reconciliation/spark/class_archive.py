"""Archive of the Java classes that an audit loads (AppCDS); shortens the start of Spark.

    first audit --it has ended--> python -m reconciliation.spark.class_archive   (idle priority)
                                   | audits a small store in a Java that writes what it loaded
    later audits <----- a file ----' below the user's cache, for one Java and one pyspark

Java itself refuses an archive of another Java or of other jars, or whose bytes have changed, and
goes on without; one that is cut would end it, so its name tells its size. The variable
DUEMQ_CLASS_ARCHIVE names another folder; `off`: none is made or used.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

VARIABLE: Final = "DUEMQ_CLASS_ARCHIVE"
OFF: Final = "off"
QUIET: Final = "-Xlog:disable"
CHECKED: Final = "-XX:+VerifySharedSpaces"
END_S: Final = 300  # for Java to write it
UNUSED_S: Final = 30 * 86_400
MESSAGES: Final = 100
LOOPBACK: Final = (b"\x7f\x00\x00\x01", 1)


@dataclass(frozen=True, slots=True)
class ClassArchive:
    """Where the archive of one Java and one pyspark belongs.

    Attributes:
        stem: how its file's name begins; its size and `.jsa` follow.
    """

    folder: Path
    stem: str

    @classmethod
    def of(cls, java: Path, environment: Mapping[str, str] = os.environ) -> ClassArchive | None:
        """Return the one of a Java, the program that Spark starts; None: it is switched off."""
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
        """The archive, if there is one and it is whole."""
        for path in self.folder.glob(f"{self.stem}-*.jsa"):
            with suppress(OSError):  # another process removes it
                if path.name == f"{self.stem}-{path.stat().st_size}.jsa":
                    return path
        return None

    @property
    def options(self) -> str:
        """What Java is told to use it; empty: it is not there."""
        file = self.file
        return f'{QUIET} {CHECKED} -XX:SharedArchiveFile="{file}"' if file else ""

    def keep(self, made: Path) -> None:
        """Take a file that Java has written as the archive; those not used lately are removed.

        Raises:
            OSError: The disk refused it.
        """
        with made.open("rb") as file:
            os.fsync(file.fileno())
        kept = self.folder / f"{self.stem}-{made.stat().st_size}.jsa"
        made.replace(kept)
        for old in self.folder.glob("spark-*.jsa"):
            mine = old.name.startswith(f"{self.stem}-")
            if old != kept and (mine or old.stat().st_atime < kept.stat().st_mtime - UNUSED_S):
                old.unlink(missing_ok=True)


def make_later(archive: ClassArchive | None) -> bool:
    """Have a process of its own make an archive, unless it is there; return whether it does.

    It outlives this one, and takes only what others leave of the processor.
    """
    if archive is None or archive.file is not None:
        return False
    nowhere = subprocess.DEVNULL
    command = [sys.executable, "-P", "-m", "reconciliation.spark.class_archive"]
    with suppress(OSError):
        subprocess.Popen(
            command, stdin=nowhere, stdout=nowhere, stderr=nowhere, start_new_session=True, cwd="/",
            env={**os.environ, VARIABLE: str(archive.folder)},
        )  # fmt: skip
        return True
    return False


def make(archive: ClassArchive) -> bool:
    """Audit a small store, and have Java write what it loaded; return whether there is one now.

    Raises:
        UsageError: Java or a package is missing.
        OSError: The folder cannot be written.
    """
    archive.folder.mkdir(parents=True, exist_ok=True)
    with _alone(archive) as alone:
        if alone and archive.file is None:
            made = archive.folder / f"{archive.stem}.new"
            made.unlink(missing_ok=True)
            _train(made)
            if made.is_file():
                archive.keep(made)
    return archive.file is not None


@contextmanager
def _alone(archive: ClassArchive) -> Iterator[bool]:
    """Return whether no other process makes one now."""
    with (archive.folder / f"{archive.stem}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


def _train(made: Path) -> None:
    """Audit in a Java that writes its archive to `made`, and wait until it has."""
    from message_store.clock import SystemClock
    from reconciliation.jobs.run import Wanted, run_audit
    from reconciliation.spark.session import local_session

    with tempfile.TemporaryDirectory(prefix="duemq-archive-") as folder:
        store = Path(folder) / "store"
        _small_store(store)
        spark = local_session(memory="512m", light=True, archive_to=made)
        for out in ("", f"{folder}/out"):
            run_audit(spark, Wanted(stores=(str(store),), out=out), SystemClock())
        java = spark.sparkContext._gateway.proc  # type: ignore[union-attr]
        spark.stop()
        java.stdin.close()  # which ends it
        java.wait(timeout=END_S)


def _small_store(root: Path) -> None:
    """Make a store of a few plain messages."""
    from message_store.clock import SystemClock
    from message_store.config import StoreConfig
    from message_store.log.batch import PutBatch
    from message_store.store import MessageStore

    config = StoreConfig(root_text=str(root), commitlog_file_bytes=1 << 20, queue_file_bytes=4_000)
    with MessageStore(config, SystemClock()) as store:
        batch = PutBatch(MESSAGES)
        for _ in range(MESSAGES):
            batch.add(
                topic_index=store.topics.add("T"), queue_id=0, body=b"body", properties=b"",
                born_ms=1, born_host=LOOPBACK, store_host=LOOPBACK,
            )  # fmt: skip
        store.put(batch)


def main() -> int:
    """Make the archive of the Java that is found, at the lowest priority; return the exit code."""
    from reconciliation.spark.requirements import find_java
    from reconciliation.submit import give_way

    give_way()
    archive = ClassArchive.of(find_java())
    return 0 if archive is not None and make(archive) else 1


if __name__ == "__main__":
    raise SystemExit(main())
