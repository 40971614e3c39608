"""Processes of the local engine do not import pandas."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import sys
from spark_reconciliation.local.choice import LOCAL_ENGINE
from spark_reconciliation.spark.master import SparkMaster, session_at
session = session_at(SparkMaster(engine=LOCAL_ENGINE))
import pyarrow as pa
rows = session.createDataFrame([(1,)], "n bigint").collect()
assert [row["n"] for row in rows] == pa.array([1]).to_pylist()
assert "pandas" not in sys.modules
import pandas
session.stop()
"""


def test_pandas_is_not_imported() -> None:
    subprocess.run([sys.executable, "-c", CODE], check=True)
