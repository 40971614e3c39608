"""Choice of the engine of an audit: by the bytes of the logs, unless the user names one."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from typing import Final

from duemq_common.errors import UsageError
from spark_reconciliation.scan.files import Root
from spark_reconciliation.scan.planning import files_of_row, plan_log

AUTO_ENGINE: Final = "auto"
LOCAL_ENGINE: Final = "local"
SPARK_ENGINE: Final = "spark"
LOCAL_BYTES_MAX: Final = 512 << 20
"""Maximum bytes of the logs whose tables are in memory; these take about twice as much."""
PACKAGES: Final = ("duckdb", "pyarrow", "fsspec")


def choose_engine(
    engine: str, stores: Sequence[str], *, spark_requested: bool, brief: bool = False
) -> str:
    """Return LOCAL_ENGINE or SPARK_ENGINE.

    Args:
        engine: AUTO_ENGINE, LOCAL_ENGINE or SPARK_ENGINE.
        spark_requested: Whether the command needs Spark: a server, settings, tables.
        brief: Whether only counts and findings are requested: of stores of any size.
    Raises:
        UsageError: The local engine is requested, and its packages are missing, the stores are too
            large, or Spark is requested as well.
    """
    if engine == SPARK_ENGINE:
        return SPARK_ENGINE
    missing = [name for name in PACKAGES if find_spec(name) is None]
    size = 0 if brief else log_bytes(stores)
    if engine == AUTO_ENGINE:
        small = not spark_requested and not missing and size <= LOCAL_BYTES_MAX
        return LOCAL_ENGINE if small else SPARK_ENGINE
    if spark_requested:
        text = "--connect, --conf, tables of databases and large tables need Spark"
        raise UsageError(f"{text}: omit --engine local")
    if missing:
        names = " and ".join(missing)
        raise UsageError(f"--engine local needs {names}: pip install 'duemq[spark]'")
    if size > LOCAL_BYTES_MAX:
        text = f"the logs have {size >> 20:,} MiB; the local engine reads {LOCAL_BYTES_MAX >> 20}"
        raise UsageError(f"{text} MiB at most: omit --engine local, to use Spark")
    return LOCAL_ENGINE


def log_bytes(stores: Sequence[str]) -> int:
    """Return the bytes of the logs, without the unused end of their last files.

    An unreadable directory counts as empty: the audit reports it.
    """
    total = 0
    for store in stores:
        with suppress(OSError):
            files = files_of_row(Root(store.rstrip("/")), "commitlog")
            earlier = sum(entry.size for entry in files[:-1])
            if earlier > LOCAL_BYTES_MAX:  # the end of the last file makes no difference
                return earlier
            plan = plan_log(Root(store.rstrip("/")))
            total += plan.end - plan.min
    return total
