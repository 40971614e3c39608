"""The command line: in the process of the test, or as a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import typer
from typer.testing import CliRunner

from duemq.cli.app import app
from tests.support.running_broker import SMALL

TOP = Path(__file__).resolve().parents[2]
TIMEOUT_S = 300  # a first start compiles kernels

# The runner builds all commands of an application for each call, which takes 35 ms.
setattr(typer.testing, "_get_command", cache(typer.main.get_command))  # noqa: B010

Done = subprocess.CompletedProcess[str]


def duemq(*words: str, input: str | None = None, env: Mapping[str, str] | None = None) -> Done:
    """Run one command to its end in this process, which takes a second less than another one."""
    own = {"NAMESRV_ADDR": None, "NO_COLOR": "1", **(env or {})}
    ran = CliRunner().invoke(app, words, input=input, env=own, prog_name="duemq")
    if ran.exception is not None and not isinstance(ran.exception, SystemExit):
        raise ran.exception
    return subprocess.CompletedProcess(words, ran.exit_code, ran.stdout, ran.stderr)


def environment(**more: str) -> dict[str, str]:
    """Return the environment of a process that runs a command."""
    path = os.pathsep.join(filter(None, (str(TOP), os.environ.get("PYTHONPATH", ""))))
    clean = {k: v for k, v in os.environ.items() if k != "NAMESRV_ADDR"}
    return {**clean, "PYTHONPATH": path, "NO_COLOR": "1", **more}


def duemq_process(*words: str, **more: Any) -> Done:
    """Run one command to its end as a process."""
    return subprocess.run(
        [sys.executable, "-m", "duemq", *words],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        env=environment(**more.pop("env", {})),
        **more,
    )


@dataclass
class Running:
    """Process of a broker that is ready."""

    process: subprocess.Popen[str]
    ready: dict[str, Any]
    conf: Path

    @property
    def where(self) -> tuple[str, str]:
        """Options that name the broker's name server."""
        return ("--namesrv", str(self.ready["namesrv"]))

    def stop(self) -> str:
        """Stop it with SIGTERM; return what it still printed."""
        self.process.send_signal(signal.SIGTERM)
        out, _ = self.process.communicate(timeout=TIMEOUT_S)
        return out


def start(directory: Path, *, env: Mapping[str, str] | None = None, **more: str) -> Running:
    """Start a small broker with a name server; return it when it is ready.

    Args:
        env: Further variables of the environment.
        more: Further keys of the configuration file.
    """
    properties = SMALL | {
        "storePathRootDir": str(directory / "store"),
        "embeddedNamesrvEnable": "true",
        "embeddedNamesrvPort": "0",
        "messageDelayLevel": "1s 1h",
    }
    conf = directory / "broker.conf"
    conf.write_text("".join(f"{k}={v}\n" for k, v in (properties | more).items()))
    return running("broker", "-c", str(conf), conf=conf, env=env)


def running(*words: str, conf: Path = Path(), env: Mapping[str, str] | None = None) -> Running:
    """Start a broker with a command; return it when it is ready."""
    process = subprocess.Popen(
        [sys.executable, "-m", "duemq", *words, "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment(**(env or {})),
    )
    assert process.stdout is not None
    return Running(process, json.loads(process.stdout.readline()), conf)
