"""`duemq init`, and a broker without a configuration file."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from duemq.cli.app import app
from duemq.cli.config_show import broker_sections
from duemq.cli.exits import Exit
from duemq.cli.init import GROUPS
from duemq_common.config import Properties, options, read_properties, value_text
from tests.support.commands import TOP, duemq, running

pytestmark = pytest.mark.finding("3U3")


def test_init_writes_the_shipped_file(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    ran = CliRunner().invoke(app, ["init", str(file)])
    assert ran.exit_code == 0, ran.output
    assert file.read_text() == (TOP / "config" / "broker.conf").read_text(), "run `make docs`"
    assert f"duemq broker -c {file}" in ran.output


@pytest.mark.parametrize("words", [(), ("--all",)])
def test_the_file_agrees_with_the_declared_keys(tmp_path: Path, words: tuple[str, ...]) -> None:
    file = tmp_path / "broker.conf"
    CliRunner().invoke(app, ["init", str(file), *words])
    values = {key: value for _, group in GROUPS for key, value in group.items()}
    assert dict(read_properties(file)) == {k: v for k, v in values.items() if v is not None}
    commented = dict(re.findall(r"^# (\S+) =(?: (.*))?$", file.read_text(), re.M))
    for item in (item for section in broker_sections(Properties()) for item in options(section)):
        if values.get(item.key) is None and (words or item.key in values):
            assert commented[item.key] == value_text(item.default)
    assert max(map(len, file.read_text().splitlines())) <= 100


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
