"""Command lines of servers: with the options of Typer's commands, and without Typer."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import typer

from duemq.cli import serve
from duemq.cli.app import app
from duemq.cli.server_command import AS_JSON, VALUES_OF, server_command
from duemq_common.config import Properties

TIMEOUT_S = 60
SERVERS = ("broker", "namesrv")


@pytest.mark.parametrize("name", SERVERS)
def test_a_server_has_the_options_of_its_command(name: str) -> None:
    command: Any = typer.main.get_command(app)
    parameters = command.commands[name].params
    flags = {option for each in parameters if each.is_flag for option in each.opts}
    options = {option for each in parameters for option in each.opts}
    assert (flags, options) == ({AS_JSON}, {AS_JSON, *VALUES_OF[name]})


Served = list[tuple[Path | None, dict[str, str], Path | None, bool]]


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Served:
    """Return the arguments with which servers were run."""
    calls: Served = []

    def broker(
        file: Path | None, read: Callable[[], Properties], logging: Path | None, *, as_json: bool
    ) -> None:
        calls.append((file, dict(read()), logging, as_json))

    def namesrv(
        file: Path | None, properties: Properties, logging: Path | None, *, as_json: bool
    ) -> None:
        calls.append((file, dict(properties), logging, as_json))

    monkeypatch.setattr(serve, "serve_broker", broker)
    monkeypatch.setattr(serve, "serve_namesrv", namesrv)
    return calls


@pytest.mark.parametrize("name", SERVERS)
@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--json"],
        ["-s", "a=1", "--set", "b=2=3", "--set=c=4", "--json"],
        ["-c", "{file}", "--logging={file}"],
        ["--config", "{file}", "--logging", "{file}", "-s", "brokerName=second"],
    ],
)
def test_typer_and_the_direct_command_agree(
    name: str, options: list[str], served: Served, tmp_path: Path
) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("brokerName=first\n")
    _check([name, *(option.format(file=file) for option in options)], served)


@pytest.mark.parametrize("option", [["--namesrv", "a:1"], ["-n", "a:1;b:2"], ["--namesrv=a:1"]])
def test_name_servers_of_a_broker(option: list[str], served: Served) -> None:
    _check(["broker", *option], served)
    assert "namesrvAddr" in served[0][1]
    assert server_command(["namesrv", *option]) is None


def _check(arguments: Sequence[str], served: Served) -> None:
    command = server_command(arguments)
    assert command is not None
    command.run()
    app(arguments, standalone_mode=False)
    direct, by_typer = served
    assert direct == by_typer


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["levels"],
        ["--version"],
        ["broker", "--help"],
        ["broker", "-h"],
        ["broker", "-sa=1"],
        ["broker", "--conf", "file"],
        ["broker", "--config"],
        ["broker", "--config="],
        ["broker", "--config", "--json"],
        ["broker", "--json=true"],
        ["broker", "name"],
        ["broker", "--", "--json"],
    ],
)
def test_other_command_lines_are_left_to_typer(arguments: list[str]) -> None:
    assert server_command(arguments) is None


def test_an_invalid_override_is_a_line_of_text(capsys: pytest.CaptureFixture[str]) -> None:
    command = server_command(["broker", "-s", "brokerName"])
    assert command is not None
    with pytest.raises(SystemExit) as exit_:
        command.run()
    assert exit_.value.code == 2
    assert capsys.readouterr().err == "duemq: --set brokerName: must be KEY=VALUE\n"


def test_a_server_imports_neither_typer_nor_pydantic() -> None:
    program = """
import sys
from unittest.mock import patch
from duemq.cli import main
with patch("duemq.cli.serve.serve_broker"):
    sys.argv[1:] = ["broker", "-s", "brokerName=a", "--json"]
    main()
print(*({"typer", "pydantic", "rich"} & sys.modules.keys()))
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, timeout=TIMEOUT_S, check=True, capture_output=True, text=True)
    assert done.stdout.split() == []
