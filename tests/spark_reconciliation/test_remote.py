"""A store in S3: it has the same rows as on the local disk, and damage is reported."""

from __future__ import annotations

import gc
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import dataset

from duemq_common.errors import UsageError
from spark_reconciliation.local.parquet_folders import ParquetFolders
from spark_reconciliation.scan.files import Root
from spark_reconciliation.scan.tables import TABLES
from tests.support.extended import extended
from tests.support.golden_stores import copy_golden_store
from tests.support.read_tables import read_rows

URL = "s3://stores/a"


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    pytest.importorskip("s3fs")
    moto = pytest.importorskip("moto.server", reason="needs moto with its server, and s3fs")
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    gc.collect()  # closes clients; in the event loop of a later test, it would begin tasks there
    server.stop()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = copy_golden_store("apache-5.3.3-clean", tmp_path_factory.mktemp("s3"))
    shutil.rmtree(root / "index")
    return root


@pytest.fixture(scope="module")
def system(endpoint: str, store: Path) -> Iterator[Any]:
    """Return the bucket with the store, and options that fsspec takes from its configuration."""
    import fsspec
    from fsspec.config import conf

    conf["s3"] = {"endpoint_url": endpoint, "key": "k", "secret": "s"}
    made = fsspec.filesystem("s3")
    made.mkdir("stores")
    made.put(f"{store}/", "stores/a/", recursive=True)
    made.pipe("stores/a/commitlog/", b"")  # created by consoles to show a folder
    yield made
    del conf["s3"]
    made.clear_instance_cache()


def of(path: object, table: str) -> list[dict[str, Any]]:
    names = [name for name, _ in TABLES[table] if name != "store"]
    return read_rows(path, table, *names, partitionBytes="20000")


@pytest.mark.extended
@pytest.mark.parametrize(
    "table", [name if name in ("messages", "findings") else extended(name) for name in TABLES]
)
def test_rows_equal_those_of_the_local_store(system: Any, store: Path, table: str) -> None:
    assert of(URL, table) == of(store, table)


def test_appended_objects_are_found(system: Any) -> None:
    before = Root(URL).files("more")
    system.pipe("stores/a/more/one", b"1")
    assert (before, [e.size for e in Root(URL).files("more")]) == ([], [1])
    other = type(system)(**system.storage_options, skip_instance_cache=True)
    other.pipe("stores/a/more/two", b"22")  # by another client, so it is in no cache
    assert [e.size for e in Root(URL).files("more")] == [1, 2]


@pytest.mark.extended
def test_rows_in_folders_of_two_columns(system: Any) -> None:
    rows = pa.table({"number": [1, 2, 3], "day": ["a", "a", "b"], "verdict": ["ok", "late", "ok"]})
    ParquetFolders(lambda: rows).partitionBy("day", "verdict").parquet("s3://stores/verdicts")
    written = {name.rpartition("/")[0] for name in system.find("stores/verdicts")}
    folders = ("day=a/verdict=ok", "day=a/verdict=late", "day=b/verdict=ok")
    assert written == {"stores/verdicts", *(f"stores/verdicts/{name}" for name in folders)}
    read = dataset.dataset("stores/verdicts", filesystem=system, partitioning="hive").to_table()
    assert sorted(read.to_pylist(), key=lambda row: row["number"]) == rows.to_pylist()
    with pytest.raises(UsageError, match="exists: name a new directory"):
        ParquetFolders(lambda: rows).parquet("s3://stores/verdicts")


def test_a_removed_object_is_a_finding(system: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    list_files, listed = Root.files, list[str]()

    def keep_listing(self: Root, below: str) -> Any:
        found = list_files(self, below)
        listed.append(below)
        if listed.count("commitlog") < 3:  # the plan uses the third listing
            return found
        gone = [e for e in found if e.name == f"{65_536:020d}" and below == "commitlog"]
        for entry in gone:
            if system.exists(f"stores/a/{entry.path}"):
                system.mv(f"stores/a/{entry.path}", "stores/gone")
        return found

    monkeypatch.setattr(Root, "files", keep_listing)
    try:
        findings = of(URL, "findings")
    finally:
        system.mv("stores/gone", f"stores/a/commitlog/{65_536:020d}")
    assert ("commitlog/" + f"{65_536:020d}", "unreadable") in {
        (r["file"], r["kind"]) for r in findings
    }


def test_an_unreachable_server_is_an_error_with_the_url() -> None:
    pytest.importorskip("s3fs")
    from fsspec.config import conf

    before = conf.get("s3", {})
    conf["s3"] = {
        "endpoint_url": "http://127.0.0.1:9",
        "key": "k",
        "secret": "s",
        "config_kwargs": {"retries": {"max_attempts": 0}, "connect_timeout": 1},
    }
    try:
        with pytest.raises(OSError, match=r"s3://stores/b"):
            Root("s3://stores/b").files("commitlog")
    finally:
        conf["s3"] = before


def test_an_unknown_scheme_is_refused() -> None:
    with pytest.raises(UsageError, match="nowhere://x cannot be read"):
        Root("nowhere://x").files("commitlog")


@pytest.mark.extended
@pytest.mark.spark
def test_sparks_workers_read_the_bucket(endpoint: str, system: Any, store: Path) -> None:
    """The command with the variables of fsspec gives the audit of the local directory."""
    env = os.environ | {
        "FSSPEC_S3_ENDPOINT_URL": endpoint,
        "FSSPEC_S3_KEY": "k",
        "FSSPEC_S3_SECRET": "s",
    }
    found = {}
    for path in (URL, str(store)):
        words = ["reconcile", "run", path, "--json", "--ledger", "none", "--cores", "2"]
        done = subprocess.run(
            [sys.executable, "-m", "duemq", *words],
            capture_output=True,
            text=True,
            timeout=600,
            env=env,
            check=False,
        )
        assert done.stdout, done.stderr
        summary = json.loads(done.stdout)
        found[path] = (
            done.returncode,
            summary["verdicts"],
            summary["lateness_ms"],
            summary["complete"],
        )
    assert found[URL] == found[str(store)]
    assert sum(found[URL][1].values()) > 10
