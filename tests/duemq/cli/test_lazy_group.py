"""Groups of commands are imported when a command of them is called."""

from __future__ import annotations

import subprocess
import sys

import pytest

from duemq.cli.app import GROUPS
from duemq.cli.lazy_group import LazyGroup

TIMEOUT_S = 60


@pytest.mark.parametrize("name", GROUPS)
def test_a_loaded_group_has_its_commands_and_the_given_help(name: str) -> None:
    group = LazyGroup(name=name, help="Show something.").load()
    assert (group.name, group.help) == (name, "Show something.")
    assert group.commands


def test_the_command_line_imports_no_group() -> None:
    code = f"import duemq.cli.app, sys; print({list(GROUPS)}, sorted(sys.modules))"
    run = [sys.executable, "-c", code]
    done = subprocess.run(run, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
    assert not [name for name in GROUPS if f"'duemq.cli.{name}'" in done.stdout]
