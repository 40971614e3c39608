"""State of a watch: it belongs to the stores and the version that wrote it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from duemq_common.errors import UsageError
from spark_reconciliation.jobs.watch import claim_home


def test_the_state_of_other_stores_or_versions_is_refused(tmp_path: Path) -> None:
    home = tmp_path / "watch"
    claim_home(home, ["/data/a", "/data/b"])
    claim_home(home, ["/data/a", "/data/b"])
    with pytest.raises(UsageError, match=r"watch of /data/a, /data/b, version 1.*watches /data/c"):
        claim_home(home, ["/data/c"])
    (home / "watch.json").write_text(json.dumps({"version": 9, "stores": ["/data/a"]}))
    with pytest.raises(UsageError, match=r"version 9.*give another directory with --home"):
        claim_home(home, ["/data/a"])
    (home / "watch.json").write_text('{"version": "x"}')
    with pytest.raises(UsageError, match="is not a note of a watch"):
        claim_home(home, ["/data/a"])


def test_a_state_without_a_note_is_of_another_version(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").mkdir()
    with pytest.raises(UsageError, match="of unknown stores, version 0"):
        claim_home(tmp_path, ["/data/a"])
