"""Session of an audit: local engine, Spark here, Spark Connect, or the cluster of spark-submit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, cast

from duemq_common.errors import UsageError
from spark_reconciliation import register
from spark_reconciliation.local.choice import LOCAL_ENGINE, SPARK_ENGINE
from spark_reconciliation.spark.requirements import find_java, require_packages
from spark_reconciliation.spark.session import ZONE, local_session, set_missing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONNECT_PACKAGES: Final = ("grpc", "pandas")


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkMaster:
    """Choice of the Spark that runs an audit: local, Spark Connect, or that of spark-submit.

    Attributes:
        cores, memory, log_level, light: Settings of local Spark (`session.local_session`);
            without effect on the other two kinds.
        connect: `sc://HOST:PORT` of a Spark Connect server; empty: none.
        engine: `local` for DuckDB in this process, else Spark (`local.choice`).
        submitted: Whether to use the session that spark-submit created.
        settings: Settings of the user, which replace those of this package.
    """

    cores: int = 0
    memory: str = "2g"
    log_level: str = ""
    light: bool = False
    connect: str = ""
    engine: str = SPARK_ENGINE
    submitted: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)


def parse_settings(texts: Sequence[str]) -> dict[str, str]:
    """Return settings of Spark from texts `KEY=VALUE`.

    Raises:
        UsageError: A text has no key or value.
    """
    pairs = [text.partition("=") for text in texts]
    for key, separator, value in pairs:
        if not (key.startswith("spark.") and separator):
            raise UsageError(f"--conf {key}{separator}{value}: give spark.KEY=VALUE")
        if key == ZONE:
            raise UsageError(f"--conf {key}: audits compute days in UTC, it cannot be changed")
    return {key: value for key, _, value in pairs}


def session_at(master: SparkMaster, *, with_format: bool = False) -> SparkSession:
    """Return a session.

    Args:
        with_format: Whether the format is registered; with Spark Connect it always is.
    Raises:
        UsageError: A package or Java is missing; the text has the remedy.
    """
    if master.engine == LOCAL_ENGINE:
        from spark_reconciliation.local.arrow_start import start_without_pandas
        from spark_reconciliation.local.frame import LocalSession

        start_without_pandas()
        return cast("SparkSession", LocalSession(cores=master.cores))
    require_packages()
    if not master.connect and not master.submitted:
        return local_session(
            cores=master.cores,
            memory=master.memory,
            log_level=master.log_level,
            with_format=with_format,
            light=master.light,
            settings=master.settings,
        )
    if master.connect:
        _require_connect()
    else:
        find_java()
    from pyspark.sql import SparkSession
    from pyspark.sql.utils import is_remote

    builder = SparkSession.builder.appName("duemq reconcile")
    spark: SparkSession = (
        builder.remote(master.connect) if master.connect else builder
    ).getOrCreate()
    set_missing(spark, master.settings)
    if with_format or is_remote():  # with Spark Connect the jobs of this package need it, too
        register(spark)
    return spark


def _require_connect() -> None:
    from importlib.util import find_spec

    for name in CONNECT_PACKAGES:
        if find_spec(name) is None:
            reason = f"Spark Connect needs {name}, which is not installed"
            raise UsageError(f"{reason}: pip install 'pyspark[connect]'")
