"""Every mqadmin 5.3.3 command: its output equals that for Apache's broker, or is a refusal."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.mqadmin import AdminSession
from tests.interop.mqadmin_commands import COMMANDS, ROWS, Answer, Row
from tests.interop.peers import make_peer, peer_name
from tests.support.requirements import skip_without

RECORDED = Path(__file__).parents[1] / "golden" / "mqadmin" / "apache-5.3.3.json"
LISTED = re.compile(r"^   (\w+) ", re.M)  # in `mqadmin help`


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AdminSession]:
    """Runs commands over a new broker without a port of v5 clients, which its routes name."""
    peer = make_peer(tmp_path_factory.mktemp("broker"))
    peer.keys.pop("grpcServerPort", None)
    with (
        skip_without(),
        peer as server,
        AdminSession(server, tmp_path_factory.mktemp("mqadmin")) as admin,
    ):
        yield admin


@pytest.fixture(scope="module")
def printed(session: AdminSession) -> dict[str, str]:
    """Outputs of all commands for the broker under test."""
    return session.run_all()


@pytest.fixture(scope="module")
def recorded() -> dict[str, str]:
    """Recorded outputs for Apache's broker."""
    found: dict[str, str] = json.loads(RECORDED.read_text())
    return found


@pytest.mark.parametrize("row", ROWS, ids=[row.words for row in ROWS])
def test_each_command_has_its_answer(
    row: Row, printed: dict[str, str], recorded: dict[str, str]
) -> None:
    ours, apaches = printed[row.words], recorded[row.words]
    if peer_name() != "duemq" or row.response is Answer.APACHES:  # Apache's broker is the control
        assert ours == apaches
    elif row.response is Answer.MORE:
        wanted = [line for line in apaches.splitlines() if not re.search(row.apart or "$^", line)]
        assert wanted
        missing = sorted(set(wanted) - set(ours.splitlines()))
        assert missing == []
    elif row.response is Answer.OURS:
        assert re.search(row.shows, ours), ours
    else:
        assert "CODE: N DESC: request type N (" in ours
        assert f"is not supported by this broker: {row.shows}" in ours


def test_no_command_is_missing(session: AdminSession) -> None:
    listed = set(LISTED.findall(session.run("help")))
    assert len(listed) > 80
    assert listed == set(COMMANDS)
