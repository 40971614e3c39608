"""Spark session for an audit on this machine.

On a cluster the submitted job creates the session. `SETTINGS` are recommended there, too.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Final

from duemq_common.existence import exists
from spark_reconciliation import register
from spark_reconciliation.spark.archive_file import QUIET, ClassArchive
from spark_reconciliation.spark.requirements import check_memory, find_java, require_packages

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STDERR: Final = 2
DRIVER_MEMORY: Final = "spark.driver.memory"
JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
ZONE: Final = "spark.sql.session.timeZone"  # jobs compute days and local times in this zone
DEFAULTS_NAME: Final = "spark-defaults.conf"
SESSION_KEYS: Final = "spark.sql."
PIECES_PER_CORE: Final = 32  # partitions of a shuffle; larger ones may not fit into memory

LIGHT: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
ERROR_LOGGERS: Final = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")
LOGGING: Final = Path(__file__).with_name("log4j2.properties")
SETTINGS: Final = {
    ZONE: "UTC",
    "spark.sql.adaptive.enabled": "true",
    "spark.ui.enabled": "false",
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    "spark.sql.dataFrameQueryContext.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


def local_session(
    *,
    cores: int = 0,
    memory: str = "2g",
    log_level: str = "",
    with_format: bool = True,
    light: bool = False,
    archive_to: Path | None = None,
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """Start Spark in this process, or return the running session, whose settings remain.

    Args:
        cores: Maximum parallel tasks; 0: one per core.
        memory: Memory of the Java process.
        log_level: Level of Spark's log on standard error; empty: no log.
        with_format: Register `format("rocketmq-store")`, which takes some seconds; jobs of this
            package read stores without it.
        light: For jobs that work mainly in Python (`aggregated_audit`): Java compiles quickly, with
            less optimization.
        archive_to: File to which Java writes its loaded classes at its end (`class_archive`).
        settings: Settings of the user. They and those of spark-defaults.conf replace `SETTINGS`.
    Raises:
        UsageError: pyspark, pyarrow or Java is missing, or the memory is too little; the text has
            the remedy.
    """
    require_packages()
    archive = ClassArchive.of(find_java())
    from pyspark.sql import SparkSession

    if (running := SparkSession.getActiveSession()) is not None:
        set_missing(running, settings or {})
        if with_format:
            register(running)
        return running
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # plans and reads data sources
    cores = cores or os.cpu_count() or 1
    java = f"-Dlog4j2.configurationFile={LOGGING.as_uri()} -Dduemq.spark.log={log_level or 'OFF'}"
    java += f" {LIGHT}" if light else ""
    if archive_to is not None:
        java += f' {QUIET} -XX:ArchiveClassesAtExit="{archive_to}"'
    elif archive is not None:
        java += f" {archive.options}"
    builder = SparkSession.builder.appName("duemq reconcile").master(f"local[{cores}]")
    local = {
        DRIVER_MEMORY: memory,
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        JAVA_OPTIONS: java,
        "spark.sql.shuffle.partitions": str(cores * PIECES_PER_CORE),
    }
    user_settings = spark_defaults() | dict(settings or {})
    check_memory(user_settings.get(DRIVER_MEMORY, memory))
    local[JAVA_OPTIONS] += f" {user_settings.pop(JAVA_OPTIONS, '')}"
    for key, value in (SETTINGS | local | user_settings | {ZONE: "UTC"}).items():
        builder = builder.config(key, value)
    with nullcontext() if log_level else _silent_children():
        session: SparkSession = builder.getOrCreate()
    if not log_level:
        _silence_errors()
    if with_format:
        register(session)
    return session


def set_missing(spark: SparkSession, settings: Mapping[str, str]) -> None:
    """Set the settings of this package that a session does not have, those of the user, and UTC."""
    present = spark.conf.getAll
    missing = {key: value for key, value in SETTINGS.items() if key not in present}
    for key, value in (missing | dict(settings) | {ZONE: SETTINGS[ZONE]}).items():
        if key.startswith(SESSION_KEYS):
            spark.conf.set(key, value)


def spark_defaults() -> dict[str, str]:
    """Return the settings of the user's spark-defaults.conf."""
    home = os.environ.get("SPARK_HOME")
    folder = os.environ.get("SPARK_CONF_DIR") or (home and os.path.join(home, "conf"))
    path = Path(folder or "", DEFAULTS_NAME)
    if not folder or not exists(path):
        return {}
    lines = (line.strip() for line in path.read_text(encoding="utf-8").splitlines())
    pairs = (re.split(r"[\s=:]+", line, maxsplit=1) for line in lines if line and line[0] != "#")
    return {pair[0]: pair[1] for pair in pairs if len(pair) > 1}


def _silence_errors() -> None:
    """Switch off pyspark's log of errors with Java's traceback; it still raises them."""
    from pyspark.logger import PySparkLogger

    for name in ERROR_LOGGERS:
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)
    logging.getLogger("py4j").setLevel(logging.CRITICAL)  # a batch that was stopped


@contextmanager
def _silent_children() -> Iterator[None]:
    """Discard the standard error of processes that are started in this block."""
    kept = os.dup(STDERR)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, STDERR)
        yield
    finally:
        os.dup2(kept, STDERR)
        os.close(kept)
        os.close(nowhere)
