"""Sessions with client programs: commands on stdin, events as JSON lines on stdout.

All client programs (Java, Go, C++) accept the same lines: `id TAB command TAB --option TAB
value ...`. The events of a command have its id; the last one is `done` or `failed`.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Self

from tests.support.child_process import LOG_TAIL_BYTES, ended_with_test
from tests.support.wait_until import WaitedTooLong

Event = dict[str, Any]
COMMAND_S = 180.0
CONSUMER_MS = 600_000  # a consumer lasts longer than the waits for it
CLOSE_S = 60.0
LAST_EVENTS = ("done", "failed")


class ClientFailed(AssertionError):
    """A client program reported a failure, or ended."""


class Command:
    """A command of a client program, and its events so far."""

    def __init__(self, session: ClientSession, command_id: str, name: str) -> None:
        self._session = session
        self.id = command_id
        self._name = name
        self._events: list[Event] = []
        self._changed = threading.Condition()

    @property
    def events(self) -> list[Event]:
        """All events so far, oldest first."""
        with self._changed:
            return list(self._events)

    def named(self, name: str) -> list[Event]:
        """Events of that name so far."""
        return [event for event in self.events if event["event"] == name]

    def wait_for(self, name: str, count: int = 1, *, seconds: float = COMMAND_S) -> list[Event]:
        """Return the events of that name as soon as there are `count`.

        Raises:
            ClientFailed: The command ended first.
            WaitedTooLong: Neither happened in time.
        """
        self._wait(lambda: len(self.named(name)) >= count or self._ended(), name, seconds)
        found = self.named(name)
        if len(found) < count:
            self.result(seconds=0)
            raise ClientFailed(f"{self._name} ended with {len(found)} of {count} events {name!r}")
        return found

    def result(self, *, seconds: float = COMMAND_S) -> list[Event]:
        """Return all events after the command has succeeded.

        Raises:
            ClientFailed: The command, or the whole program, failed.
            WaitedTooLong: It did not end in time.
        """
        self._wait(self._ended, "done", seconds)
        last = self.events[-1]
        if last["event"] == "failed":
            raise ClientFailed(
                f"{self._session.name} {self._name}: {last.get('error')}: {last.get('text')}\n"
                f"{last.get('trace', '')}"
            )
        return self.events

    def stop(self) -> list[Event]:
        """Stop a consumer and return all its events."""
        self._session.start("stop", target=self.id)
        return self.result()

    def add(self, event: Event) -> None:
        """Add an event; called by the thread that reads the program's output."""
        with self._changed:
            self._events.append(event)
            self._changed.notify_all()

    def _ended(self) -> bool:
        events = self.events
        return bool(events) and events[-1]["event"] in LAST_EVENTS

    def _wait(self, condition: Any, what: str, seconds: float) -> None:
        with self._changed:
            if not self._changed.wait_for(condition, seconds):
                raise WaitedTooLong(
                    f"{self._session.name} {self._name}: no {what!r} within {seconds:g} s; "
                    f"{len(self._events)} events, the last: {self._events[-3:]}; its log ends:\n"
                    f"{self._session.log_tail()}"
                )


class ClientSession:
    """A running client program.

    Args:
        namesrv: `host:port`, added to every command.
        home: Folder for what the client library writes; HOME of the program.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        namesrv: str,
        home: Path,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self._namesrv = namesrv
        self._ids = itertools.count(1)
        self._commands: dict[str, Command] = {}
        self._log_path = home / f"{name}.log"
        home.mkdir(parents=True, exist_ok=True)
        with self._log_path.open("ab") as log:
            self._popen = subprocess.Popen(
                ended_with_test(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, "HOME": str(home), **(env or {})},
                cwd=home,
            )
        assert self._popen.stdout is not None
        self._reader = threading.Thread(
            target=self._read, args=(self._popen.stdout,), name=f"events of {name}", daemon=True
        )
        self._reader.start()

    def start(self, command: str, **options: object) -> Command:
        """Send a command and return at once; `retry_level=1` becomes `--retry-level 1`."""
        command_id = str(next(self._ids))
        words = [command_id, command]
        common = {"namesrv": self._namesrv, "wait_ms": CONSUMER_MS}
        for key, value in (common | options).items():
            words += [f"--{key.replace('_', '-')}", str(value)]
        assert not any("\t" in word or "\n" in word for word in words)
        handle = self._commands[command_id] = Command(self, command_id, command)
        assert self._popen.stdin is not None
        try:
            self._popen.stdin.write("\t".join(words).encode() + b"\n")
            self._popen.stdin.flush()
        except OSError as error:
            raise ClientFailed(
                f"{self.name} has ended; its log ends:\n{self.log_tail()}"
            ) from error
        return handle

    def run(self, command: str, **options: object) -> list[Event]:
        """Send a command, wait until it is done, return its events."""
        return self.start(command, **options).result()

    def events(self, command: str, name: str, **options: object) -> list[Event]:
        """Run a command and return its events of that name."""
        return [event for event in self.run(command, **options) if event["event"] == name]

    def log_tail(self) -> str:
        """Return the last lines that the program wrote to stderr."""
        return self._log_path.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace")

    def close(self) -> None:
        """Close the input of the program; kill it if it does not end."""
        assert self._popen.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended already
            self._popen.stdin.close()
        try:
            self._popen.wait(CLOSE_S)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.wait(CLOSE_S)
        self._reader.join(CLOSE_S)
        assert self._popen.stdout is not None
        self._popen.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _read(self, lines: IO[bytes]) -> None:
        for line in lines:
            try:
                event = json.loads(line)
                handle = self._commands[event["id"]]
            except (ValueError, KeyError, TypeError):
                continue  # a library that prints to stdout
            handle.add(event)
        for handle in list(self._commands.values()):
            handle.add({"event": "failed", "error": "ended", "text": self.log_tail()})


class FreshSessions:
    """Session in which each command runs in a new process.

    For libraries that cannot be started twice in one process.
    """

    def __init__(self, name: str, command: Sequence[str], *, namesrv: str, home: Path) -> None:
        self._name = name
        self._command = command
        self._namesrv = namesrv
        self._home = home
        self._open: list[ClientSession] = []

    def start(self, command: str, **options: object) -> Command:
        """Send a command to a new process and return at once."""
        session = self._make()
        self._open.append(session)
        return session.start(command, **options)

    def run(self, command: str, **options: object) -> list[Event]:
        """Run a command in a new process, end that, and return the events."""
        with self._make() as session:
            return session.run(command, **options)

    def events(self, command: str, name: str, **options: object) -> list[Event]:
        """Run a command and return its events of that name."""
        return [event for event in self.run(command, **options) if event["event"] == name]

    def close(self) -> None:
        """End all processes."""
        for session in self._open:
            session.close()
        self._open.clear()

    def _make(self) -> ClientSession:
        return ClientSession(self._name, self._command, namesrv=self._namesrv, home=self._home)


Client = ClientSession | FreshSessions
