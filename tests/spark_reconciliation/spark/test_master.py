"""Sessions that exist before an audit."""

from __future__ import annotations

from typing import Any

import pytest

from spark_reconciliation.spark.master import SparkMaster, session_at
from spark_reconciliation.spark.session import SETTINGS, ZONE

ADAPTIVE, CONTEXT = "spark.sql.adaptive.enabled", "spark.sql.dataFrameQueryContext.enabled"


@pytest.mark.spark
@pytest.mark.parametrize("submitted", [False, True])
def test_settings_of_a_session_remain(spark: Any, submitted: bool) -> None:
    assert (SETTINGS[ADAPTIVE], SETTINGS[CONTEXT]) == ("true", "false")
    kept = dict(spark.conf.getAll)
    try:
        spark.conf.set(ADAPTIVE, "false")
        spark.conf.unset(CONTEXT)
        spark.conf.set(ZONE, "Asia/Tokyo")
        session = session_at(SparkMaster(submitted=submitted, settings={"spark.sql.mine": "1"}))
        assert session is spark
        names = (ADAPTIVE, CONTEXT, ZONE, "spark.sql.mine", "spark.sql.shuffle.partitions")
        expected = ["false", "false", "UTC", "1", kept["spark.sql.shuffle.partitions"]]
        assert [session.conf.get(name) for name in names] == expected
    finally:
        spark.conf.unset("spark.sql.mine")
        for name in (ADAPTIVE, CONTEXT, ZONE):
            spark.conf.set(name, kept[name])
