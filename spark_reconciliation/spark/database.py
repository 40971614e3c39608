"""Tables of databases, read by Spark through JDBC.

    jdbc:postgresql://HOST/DATABASE?user=audit#TABLE     table, view, or (SELECT ...) AS name

A password is no part of the location, which the process list and logs contain: it is an option of
its own, and PostgreSQL's driver also reads ~/.pgpass.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from duemq_common.errors import UsageError
from duemq_common.masking import masked_url

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

JDBC: Final = "jdbc:"
DRIVERS: Final = {"postgresql": "org.postgresql.Driver"}
"""Driver of a kind of database; Java finds those on its class path only by itself."""
FETCH_ROWS: Final = 10_000
"""Rows that a driver keeps in memory; PostgreSQL's would read the complete table at once."""
SECRET: Final = re.compile(r"(?i)\b(password|pwd)=[^&;#\s]*")
NO_DRIVER: Final = re.compile(r"No suitable driver|ClassNotFoundException")
CAUSE: Final = re.compile(r"^(?:Caused by|[\w.$ ]*): [\w.$]*SQL\w*Exception: (.+)$", re.MULTILINE)
WHY_DRIVER: Final = (
    "there is no JDBC driver for it: give its jar with --conf spark.jars=FILE "
    "(PostgreSQL: org.postgresql:postgresql of Maven Central)"
)


def without_secrets(location: str) -> str:
    """Return a location with its passwords replaced."""
    return masked_url(SECRET.sub(r"\1=***", location))


def read_database(spark: SparkSession, location: str, password: str) -> DataFrame:
    """Return the rows of a table; the driver connects now.

    Raises:
        UsageError: The location names no table.
        pyspark.errors.PySparkException: See `database_errors`.
    """
    url, _, table = location.partition("#")  # a query may have others
    if not table:
        raise UsageError(f"{without_secrets(location)} names no table: add #TABLE")
    options = {"url": url, "dbtable": table, "fetchsize": str(FETCH_ROWS)}
    options["preferTimestampNTZ"] = "true"  # a time without a zone is not one of the session's
    driver = DRIVERS.get(url.removeprefix(JDBC).partition(":")[0])
    options |= {"driver": driver} if driver else {}
    options |= {"password": password} if password else {}
    return spark.read.format("jdbc").options(**options).load()


@contextmanager
def database_errors(location: str, password: str) -> Iterator[None]:
    """Convert errors of Spark about a database into one line.

    Raises:
        UsageError: The driver is missing, or the reason that it or the database gives.
    """
    try:
        yield
    except UsageError:
        raise
    except Exception as error:
        if not type(error).__module__.startswith(("pyspark", "py4j")):
            raise
        text = f"{error}\n{getattr(error, '_stackTrace', '')}"  # Spark's text lacks the cause
        causes = CAUSE.findall(text)
        reason = causes[-1].strip() if causes else text.strip().splitlines()[0]
        if NO_DRIVER.search(text):
            reason = WHY_DRIVER
        if password:
            reason = reason.replace(password, "***")
        raise UsageError(f"{without_secrets(location)}: {without_secrets(reason)}") from error
