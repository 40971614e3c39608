"""Archive of the Java classes that an audit loads (AppCDS); shortens the start of Spark.

    first audit --it has ended--> python -m spark_reconciliation.spark.class_archive --idle
                                   | audits a small store in a Java that writes its loaded classes
    later audits <----- a file ----' below the user's cache, for one Java and one pyspark

Java ignores an archive of another Java or of other jars, or a damaged one. A truncated archive
would make Java exit, so the file name contains the size. The variable DUEMQ_CLASS_ARCHIVE names
another folder; with `off`, no archive is created or used.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from duemq_common.clock import SystemClock
from duemq_common.existence import is_file
from message_store.config import StoreConfig
from message_store.log.batch import PutBatch
from message_store.store import MessageStore
from spark_reconciliation.jobs.run import AuditRequest, run_audit
from spark_reconciliation.spark.archive_file import VARIABLE, ClassArchive
from spark_reconciliation.spark.requirements import find_java
from spark_reconciliation.spark.session import local_session
from spark_reconciliation.submit import set_idle_priority

IDLE: Final = "--idle"
END_S: Final = 300  # seconds for Java to write it
MESSAGES: Final = 100
LOOPBACK: Final = (b"\x7f\x00\x00\x01", 1)


def make_later(archive: ClassArchive | None) -> bool:
    """Start a process that makes the archive, unless it exists; return whether one was started.

    The process continues after this one, at idle priority.
    """
    if archive is None or archive.file is not None:
        return False
    nowhere = subprocess.DEVNULL
    command = [sys.executable, "-P", "-m", "spark_reconciliation.spark.class_archive", IDLE]
    with suppress(OSError):
        subprocess.Popen(
            command,
            stdin=nowhere,
            stdout=nowhere,
            stderr=nowhere,
            start_new_session=True,
            cwd="/",
            env={**os.environ, VARIABLE: str(archive.folder)},
        )
        return True
    return False


def make(archive: ClassArchive) -> bool:
    """Audit a small store with a Java that writes its classes; return whether an archive exists.

    Raises:
        UsageError: Java or a package is missing.
        OSError: The folder is not writable.
    """
    archive.folder.mkdir(parents=True, exist_ok=True)
    with _is_only_maker(archive) as alone:
        if alone and archive.file is None:
            made = archive.folder / f"{archive.stem}.new"
            made.unlink(missing_ok=True)
            _make_archive(made)
            if is_file(made):
                archive.keep(made)
    return archive.file is not None


@contextmanager
def _is_only_maker(archive: ClassArchive) -> Iterator[bool]:
    """Return whether no other process makes an archive now."""
    with (archive.folder / f"{archive.stem}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


def _make_archive(made: Path) -> None:
    """Audit in a Java that writes its archive to `made`; wait for the file."""
    with tempfile.TemporaryDirectory(prefix="duemq-archive-") as folder:
        store = Path(folder) / "store"
        _small_store(store)
        spark = local_session(memory="512m", light=True, archive_to=made)
        for out in ("", f"{folder}/out"):
            run_audit(spark, AuditRequest(stores=(str(store),), out=out), SystemClock())
        java = spark.sparkContext._gateway.proc  # type: ignore[union-attr]
        spark.stop()
        java.stdin.close()  # ends Java
        java.wait(timeout=END_S)


def _small_store(root: Path) -> None:
    """Make a store of a few plain messages."""
    config = StoreConfig(root_text=str(root), commitlog_file_bytes=1 << 20, queue_file_bytes=4_000)
    with MessageStore(config, SystemClock()) as store:
        batch = PutBatch(MESSAGES)
        for _ in range(MESSAGES):
            batch.add(
                topic_index=store.topics.add("T"),
                queue_id=0,
                body=b"body",
                properties=b"",
                born_ms=1,
                born_host=LOOPBACK,
                store_host=LOOPBACK,
            )
        store.put(batch)


def main(words: Sequence[str]) -> int:
    """Make the archive for the Java of this machine; return the exit code.

    Args:
        words: `--idle`: at idle priority.
    """
    if IDLE in words:
        set_idle_priority()
    archive = ClassArchive.of(find_java())
    return 0 if archive is not None and make(archive) else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
