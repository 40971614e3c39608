"""The Spark session shared by all tests that need Java."""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.requirements import in_ci

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FOR_FEW_ROWS = {
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""Without code generation, which takes longer than these small plans; one test runs with it."""

SETTINGS = {"spark.driver.extraJavaOptions": f"-Dderby.stream.error.file={os.devnull}"}
"""Derby, whose driver is part of Spark, would write a log into the working directory."""


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        if in_ci():
            pytest.fail("Spark needs Java 17 or newer; CI must have it")
        pytest.skip("Spark needs Java 17 or newer")
    from spark_reconciliation.spark.session import local_session

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pyspark's own warnings at its start
        session = local_session(cores=2, memory="2g", light=True, settings=SETTINGS)
    # The socket of the callback server must have a descriptor below 1,024, as py4j uses select:
    # a later start, in a process with many open stores, would leave callbacks without a response.
    stream = session.readStream.format("rate").load()
    stream.writeStream.foreachBatch(lambda rows, number: None)  # starts the callback server
    for key, value in FOR_FEW_ROWS.items():
        session.conf.set(key, value)
    yield session
    session.stop()


BOTH = [pytest.param("spark", marks=pytest.mark.spark), "local"]


@pytest.fixture(scope="module", params=BOTH)
def engine(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Return a session of each engine."""
    from spark_reconciliation.engine import use_engine_of
    from spark_reconciliation.local.frame import LocalSession

    if request.param == "spark":
        yield request.getfixturevalue("spark")
        return
    session = LocalSession()
    with use_engine_of(session):
        yield session
    session.stop()


@pytest.fixture
def on_spark(spark: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let commands in this process use the session of all tests, and leave it running."""
    with monkeypatch.context() as patched:
        patched.setattr(spark, "stop", lambda: None)
        patched.setattr("spark_reconciliation.spark.master.session_at", lambda where, **_: spark)
        yield


def with_own_plan(frame: DataFrame) -> DataFrame:
    """Compute the rows of a frame, and return them as one whose queries have small plans.

    A query of a persisted audit is planned in half a second of a processor.
    """
    return frame.sparkSession.createDataFrame(frame.collect(), frame.schema)
