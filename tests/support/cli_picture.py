"""`python -m tests.support.cli_picture FILE`: draw what commands print, as SVG."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.terminal_theme import DIMMED_MONOKAI
from rich.text import Text

from tests.support.duemq_server import DueMQ

COLUMNS: Final = 112
# As Rich's, but without fonts from another host.
FORMAT: Final = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{
    font-family: monospace; font-size: {char_height}px; line-height: {line_height}px;
}}
{styles}
</style>
<defs><clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
</clipPath>{lines}</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}<g class="{unique_id}-matrix">{matrix}</g></g>
</svg>
"""
PREPARATION: Final = (
    *(f"duemq send OrderTimeout 'order {number}' --level {number % 3 + 5}" for number in range(5)),
    *(f"duemq send Reminders 'meeting {number}' --at +{number * 7 + 3}m" for number in range(6)),
)
SHOWN: Final = (
    "duemq send OrderTimeout 'order 42' --level 5",
    "duemq levels",
    "duemq timers",
    "duemq timers list",
)


def output(command: str, environment: dict[str, str]) -> str:
    """Run a command and return what it prints, with colours."""
    words = [sys.executable, "-m", *shlex.split(command)]
    done = subprocess.run(words, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def draw(path: Path) -> None:
    """Write the picture."""
    picture = Console(record=True, width=COLUMNS, file=open(os.devnull, "w"))  # noqa: SIM115
    with tempfile.TemporaryDirectory() as home, DueMQ(Path(home)) as server:
        environment = os.environ | {
            "NAMESRV_ADDR": server.namesrv_address,
            "FORCE_COLOR": "1",
            "COLUMNS": str(COLUMNS),
        }
        for command in PREPARATION:
            output(command, environment)
        for command in SHOWN:
            picture.print(Text(f"$ {command}", style="bold"))
            picture.print(Text.from_ansi(output(command, environment)))
    svg = picture.export_svg(title="duemq", theme=DIMMED_MONOKAI, code_format=FORMAT)
    path.write_text(svg)


if __name__ == "__main__":
    draw(Path(sys.argv[1]))
