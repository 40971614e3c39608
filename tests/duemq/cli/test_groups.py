"""Groups of commands are imported when a command of them is called."""

from __future__ import annotations

import subprocess
import sys

import pytest

from duemq.cli.app import GROUPS
from duemq.cli.groups import LazyGroup

TIMEOUT_S = 60


@pytest.mark.parametrize("name", GROUPS)
def test_a_loaded_group_has_its_commands_and_the_given_help(name: str) -> None:
    group = LazyGroup(name=name, help="Show something.").loaded
    assert (group.name, group.help) == (name, "Show something.")
    assert group.commands


def test_the_help_imports_neither_groups_nor_rich() -> None:
    code = (
        "import atexit, sys; atexit.register(lambda: print(sorted(sys.modules), file=sys.stderr))"
    )
    run = [sys.executable, "-c", f"{code}; from duemq.cli.app import app; app(['--help'])"]
    done = subprocess.run(run, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
    assert "'duemq.cli.app'" in done.stderr
    imports = {"rich", *(f"duemq.cli.{name}" for name in GROUPS)}
    assert not [name for name in imports if f"'{name}'" in done.stderr]


def test_the_help_of_a_group_has_whole_sentences() -> None:
    run = [sys.executable, "-c", "from duemq.cli.app import app; app(['--help'])"]
    done = subprocess.run(run, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
    words = " ".join(done.stdout.split())
    assert all(f"{name} {text}" in words for name, text in GROUPS.items())
    assert "..." not in words.replace("[ARGS]...", "")
