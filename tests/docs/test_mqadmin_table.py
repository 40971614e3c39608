"""The table of mqadmin's commands in docs/compat.md: rows and answers of the interop test."""

from __future__ import annotations

import re
from pathlib import Path

from duemq.admin.absent_features import NO_ACCOUNTS, REASONS
from duemq_common.codes import RequestCode
from tests.interop.mqadmin_commands import COMMANDS, ROWS, Answer

WITHOUT_COMMAND = (  # in mqadmin 5.3.3; the last two are of 5.5
    RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN,
    RequestCode.SWITCH_TIMER_ENGINE,
    RequestCode.POP_LITE_MESSAGE,
)
TEXT = (Path(__file__).parents[2] / "docs" / "compat.md").read_text()
SECTION = TEXT.partition("## mqadmin\n")[2].partition("\n## ")[0]
CELLS = re.compile(r"^\| `(\w+)` \| ([^|]+?) \|", re.M)


def test_every_command_is_listed_once_with_its_answer() -> None:
    responses = {row.command: row.response.value for row in ROWS if row.command in COMMANDS}
    listed = CELLS.findall(SECTION)
    assert [command for command, _ in listed] == sorted(COMMANDS, key=str.lower)
    wrong = [command for command, text in listed if not text.startswith(responses[command])]
    assert not wrong


def test_reasons_are_those_of_the_broker() -> None:
    no_command = {REASONS[code] for code in WITHOUT_COMMAND}
    reasons = {*REASONS.values(), NO_ACCOUNTS} - no_command
    refused = [row for row in ROWS if row.response is Answer.REFUSED]
    assert {row.shows for row in refused} == reasons
    listed = dict(CELLS.findall(SECTION))
    missing = [row.command for row in refused if row.shows not in listed[row.command]]
    assert not missing
