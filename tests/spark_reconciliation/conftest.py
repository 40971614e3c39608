"""The Spark session shared by all tests that need Java."""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.requirements import in_ci

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


ON_SPARK = pytest.param("spark", marks=pytest.mark.spark)
IN_TEST_ALL = pytest.param("spark", marks=(pytest.mark.spark, pytest.mark.extended))


def session_of_each(*engines: Any) -> Any:
    """Return a fixture with a session of each engine."""

    @pytest.fixture(scope="module", params=engines)
    def engine(request: pytest.FixtureRequest) -> Iterator[Any]:
        from spark_reconciliation.engine import use_engine_of
        from spark_reconciliation.local.frame import LocalSession

        if request.param == "spark":
            yield request.getfixturevalue("spark")
            return
        session = LocalSession(cores=1)
        with use_engine_of(session):
            yield session
        session.stop()

    return engine


engine = session_of_each(IN_TEST_ALL, "local")
"""Spark plans a query in half a second. So `make test` tests rules and jobs with the local engine;
the tests of planted faults, of Apache's stores and of functions run with both."""


@pytest.fixture
def on_spark(spark: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let commands in this process use the session of all tests, and leave it running."""
    with monkeypatch.context() as patched:
        patched.setattr(spark, "stop", lambda: None)
        patched.setattr("spark_reconciliation.spark.master.session_at", lambda where, **_: spark)
        yield


@pytest.fixture(params=[IN_TEST_ALL, "local"])
def on_each_engine(request: pytest.FixtureRequest) -> None:
    """Let commands in this process use the session of all tests, or the local engine."""
    if request.param == "spark":
        request.getfixturevalue("on_spark")
