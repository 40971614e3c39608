"""Commands of a client program: one command from the arguments, or a session from stdin.

A line of a session is: id TAB command TAB --option TAB value ... Each command runs in its own
thread, and prints one JSON line with its id for each event; the last event is "done" or "failed".
`stop --target id` stops a running consumer. This module imports only the standard library, since
client programs run in separate environments.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Mapping

OUT_LOCK = threading.Lock()
JOIN_S = 10


class Command:
    """Command of a session: its words, its events, and its stop request."""

    def __init__(self, command_id: str, words: list[str]) -> None:
        self.id = command_id
        self.name = words[0]
        self.options = {
            key.removeprefix("--"): value
            for key, value in zip(words[1::2], words[2::2], strict=True)
        }
        self.stopped = threading.Event()

    def text(self, name: str, otherwise: str = "") -> str:
        """Return an option."""
        return self.options.get(name, otherwise)

    def number(self, name: str, otherwise: int) -> int:
        """Return an option that is a number."""
        return int(self.options.get(name, otherwise))

    def print(self, event: str, **fields: object) -> None:
        """Write one event."""
        line = {"id": self.id, "event": event, "at": int(time.time() * 1_000), **fields}
        with OUT_LOCK:
            sys.stdout.write(json.dumps(line) + "\n")
            sys.stdout.flush()

    def run(self, commands: Commands, running: Mapping[str, Command]) -> bool:
        """Run the command; return whether it succeeded."""
        try:
            if self.name == "stop":
                if target := running.get(self.text("target")):
                    target.stopped.set()
            else:
                commands[self.name](self)
        except Exception as error:
            self.print("failed", error=type(error).__name__, text=str(error))
            return False
        self.print("done")
        return True


Commands = Mapping[str, Callable[[Command], None]]


def run_program(words: list[str], commands: Commands) -> int:
    """Run one command, or the commands from stdin with `session`; return the exit code."""
    if not words:
        sys.stderr.write(f"usage: session, or one of {', '.join(commands)} --option value\n")
        return 2
    if words[0] == "session":
        _session(commands)
        return 0
    return 0 if Command("0", words).run(commands, {}) else 1


def _session(commands: Commands) -> None:
    """Run the commands from stdin, each in its own thread."""
    running: dict[str, Command] = {}
    threads = []
    for line in sys.stdin:
        command_id, *words = line.rstrip("\n").split("\t")
        command = running[command_id] = Command(command_id, words)
        work = threading.Thread(target=command.run, args=(commands, running), daemon=True)
        threads.append(work)
        work.start()
    for command in running.values():
        command.stopped.set()
    for thread in threads:
        thread.join(JOIN_S)
