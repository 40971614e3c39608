"""Completion in a shell: Bash's function completes commands and options."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.requirements import need_commands, skip_without

SCRIPT = """
eval "$(duemq --show-completion bash)"
COMP_WORDS=({words})
COMP_CWORD=$(({count} - 1))
_duemq_completion duemq
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("words", "completed"),
    [
        (("duemq", "quaran"), ["quarantine"]),
        (("duemq", "quarantine", "re"), ["resend"]),
        (("duemq", "topic", "delete", "--dry"), ["--dry-run"]),
    ],
)
def test_bash_completes_commands_and_options(words: tuple[str, ...], completed: list[str]) -> None:
    with skip_without():
        need_commands("bash")
    script = SCRIPT.format(words=" ".join(words), count=len(words))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "--norc", "-c", script],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == completed, done.stderr
