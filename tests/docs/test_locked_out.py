"""The way back in that docs/how-to/accounts.md names, with the page's own commands."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from duemq.auth.signature import Credentials
from duemq.client import Client
from duemq_common.codes import RequestCode
from tests.support.accounts import ANSWER_S, KEYS, ROOT, prepare, user_steps
from tests.support.duemq_server import ROOT as TOP
from tests.support.duemq_server import DueMQ

NO_PERMISSION = 16
ALICE, FOUND = Credentials("alice", "alice-secret"), Credentials("root", "a new secret")
BROKEN = Credentials("root", "a secret that is lost")
PAGE = TOP / "docs" / "how-to" / "accounts.md"


def commands() -> list[list[str]]:
    """Return the words of the section's commands."""
    section = PAGE.read_text().partition("## Locked out")[2].partition("\n## ")[0]
    lines = re.findall(r"```sh\n(.*?)```", section, re.S)[0].splitlines()
    found = [line.partition("#")[0].split() for line in lines]
    assert [words[0] for words in found] == ["duemq", "duemq"]
    return found


def run(home: Path, words: list[str], secret: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *words],
        cwd=home,
        input=secret + "\n",
        env=os.environ | {"PYTHONPATH": str(TOP)},
        capture_output=True,
        text=True,
        check=False,
        timeout=ANSWER_S,
    )


def code_of(server: DueMQ, credentials: Credentials, code: int, fields: dict[str, str]) -> int:
    """Return the code of the answer to a signed request."""

    async def call() -> int:
        address = server.broker_address
        async with Client(broker=address, credentials=credentials, timeout_s=ANSWER_S) as client:
            return (await client.call(address, code, fields)).code

    return asyncio.run(call())


@pytest.mark.extended
@pytest.mark.crash
def test_an_operator_who_is_locked_out_gets_in_again(tmp_path: Path) -> None:
    listing, setting = commands()
    users = RequestCode.AUTH_LIST_USER, {"filter": ""}
    place = {"topic": "TBW102"}
    with DueMQ(tmp_path, keys=KEYS) as server:
        steps = user_steps(ALICE, {"Topic:TBW102": ["Get"]})
        lost = json.dumps({"password": BROKEN.secret, "userStatus": "disable"}).encode()
        steps.append((RequestCode.AUTH_UPDATE_USER, {"username": "root"}, lost))
        prepare(server.broker_address, ROOT, steps)
        assert {code_of(server, credentials, *users) for credentials in (ROOT, BROKEN)} == {
            NO_PERMISSION
        }

        refused = run(tmp_path, setting, FOUND.secret)  # another process has the accounts in force
        assert refused.returncode != 0
        assert "store" in refused.stderr

        server.stop()
        assert "alice" in run(tmp_path, listing, "").stdout
        done = run(tmp_path, setting, FOUND.secret)
        assert done.returncode == 0, done.stderr

        server.start()
        assert code_of(server, FOUND, *users) == 0
        assert {code_of(server, credentials, *users) for credentials in (ROOT, BROKEN)} == {
            NO_PERMISSION
        }
        stats = RequestCode.GET_TOPIC_STATS_INFO, place
        assert code_of(server, ALICE, *stats) != NO_PERMISSION
        assert code_of(server, ALICE, *users) == NO_PERMISSION
