"""`duemq init`, and a broker without a configuration file."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from duemq.cli.app import app
from duemq.cli.exits import Exit
from tests.support.commands import TOP, duemq, running

pytestmark = pytest.mark.finding("3U3")


def test_init_writes_the_shipped_file(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    ran = CliRunner().invoke(app, ["init", str(file)])
    assert ran.exit_code == 0, ran.output
    assert file.read_text() == (TOP / "config" / "broker.conf").read_text()
    assert f"duemq broker -c {file}" in ran.output


@pytest.mark.parametrize(
    ("name", "text"),
    [("there.conf", "exists: name a new file"), ("no/x.conf", "cannot be written")],
)
def test_init_changes_no_existing_file(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / "there.conf").write_text("brokerName = mine\n")
    ran = CliRunner().invoke(app, ["init", str(tmp_path / name)])
    assert ran.exit_code == Exit.USAGE
    assert text in " ".join(ran.stderr.split())
    assert (tmp_path / "there.conf").read_text() == "brokerName = mine\n"


def test_a_broker_without_a_file_serves_the_commands(tmp_path: Path) -> None:
    own = [
        "listenPort=0",
        "embeddedNamesrvPort=0",
        "metricsExporterType=DISABLE",
        "haListenPort=0",
        f"storePathRootDir={tmp_path / 'store'}",
    ]
    broker = running("broker", *(word for each in own for word in ("-s", each)))
    try:
        sent = duemq("send", "T", "hello", *broker.where)
        assert sent.returncode == 0, sent.stderr
    finally:
        broker.stop()
