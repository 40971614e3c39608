"""Sessions of the HTTP thread."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import asyncio, sys
from duemq.http.sessions import Sessions

async def main():
    async with Sessions(lambda credentials: None):
        former = set(sys.modules)
        from anyio import create_task_group
        async with create_task_group():
            print(len(set(sys.modules) - former))

asyncio.run(main())
"""


def test_the_first_response_imports_nothing() -> None:
    """Deliveries wait during imports; the port does not listen yet then."""
    command = [sys.executable, "-c", PROGRAM]
    run = subprocess.run(command, check=True, capture_output=True, text=True)
    assert run.stdout == "0\n"
