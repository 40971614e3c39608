"""NATS JetStream, Redis and PostgreSQL as systems of delayed messages."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

from benchmarks.peers.system import Loaded
from tests.duemq_common.ledger.postgres import find_program, unprivileged
from tests.interop.apache import cache_dir
from tests.support.child_process import Child
from tests.support.requirements import Missing, need_commands
from tests.support.wait_until import until

NATS_VERSION = "v2.15.3"
NATS_MODULE = "github.com/nats-io/nats-server/v2"


def nats_server() -> Path:
    """Return the binary of the NATS server, built once from its Go module."""
    folder = cache_dir() / f"nats-server-{NATS_VERSION}"
    if not (folder / "nats-server").exists():
        need_commands("go")
        environment = os.environ | {"GOBIN": str(folder)}
        command = ["go", "install", f"{NATS_MODULE}@{NATS_VERSION}"]
        subprocess.run(command, env=environment, check=True, capture_output=True)
    return folder / "nats-server"


class Nats(Loaded):
    """JetStream with message schedules."""

    kind = "nats"
    settings: ClassVar[str] = (
        "file storage; each pending message has a subject of its own; a durable consumer with "
        "explicit acknowledgements; a send is acknowledged when it is written to the page cache"
    )
    limits: ClassVar[str] = (
        "no list of what is pending by time; a cancel purges the subject of the schedule and does "
        "not report whether it was pending"
    )

    def __init__(self, home: Path, port: int, peerload: Path) -> None:
        super().__init__(home, port, peerload)
        self.name = f"nats-server {NATS_VERSION}"

    def command(self) -> list[str]:
        words = [str(nats_server()), "-a", "127.0.0.1", "-p", str(self.port)]
        return [*words, "-js", "-sd", str(self.home / "store")]


class Redis(Loaded):
    """Sorted set by due time, a polling worker, and a stream with a consumer group."""

    kind = "redis"
    settings: ClassVar[str] = (
        "appendonly with appendfsync everysec: a write is in the page cache when it is "
        "acknowledged; no snapshots; one worker moves due messages to a stream by a script, and "
        "polls every 5 ms; consumers acknowledge"
    )
    limits: ClassVar[str] = (
        "all messages are in memory; the worker, its failover and the history of a message are the "
        "user's programs"
    )

    def __init__(self, home: Path, port: int, peerload: Path) -> None:
        super().__init__(home, port, peerload)
        program = shutil.which("redis-server")
        if program is None:
            raise Missing("redis-server is not installed; on Debian: apt-get install redis-server")
        self._program = program
        text = subprocess.run(
            [program, "--version"], capture_output=True, text=True, check=True
        ).stdout
        self.name = f"Redis {text.partition('v=')[2].split()[0]}"

    def command(self) -> list[str]:
        words = [self._program, "--bind", "127.0.0.1", "--port", str(self.port), "--save", ""]
        return [*words, "--appendonly", "yes", "--dir", str(self.home)]


class Postgres(Loaded):
    """Table with an index by due time; consumers take rows with `SKIP LOCKED`."""

    kind = "postgres"
    settings: ClassVar[str] = (
        "fsync=off, so that a commit waits for the page cache only, as the others do; "
        "shared_buffers=1GB, max_wal_size=4GB; rows are inserted in groups of those that wait; "
        "consumers take 500 rows in a transaction with SKIP LOCKED, and poll every 5 ms"
    )
    limits: ClassVar[str] = (
        "no subscriptions and no failover of consumers; the poll, the retries and the cleaning of "
        "dead rows (vacuum) are the user's"
    )

    def __init__(self, home: Path, port: int, peerload: Path) -> None:
        super().__init__(home, port, peerload)
        program = find_program("postgres")
        version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
        self.name = f"PostgreSQL {version.stdout.split()[2]}"
        self._program, self._data = program, home / "data"
        user = unprivileged()
        self._as_user = []
        if user:
            os.chown(home, user["user"], user["group"])
            self._as_user = [
                "setpriv",
                f"--reuid={user['user']}",
                f"--regid={user['group']}",
                "--clear-groups",
            ]
        make = [find_program("initdb"), "-D", str(self._data), "-U", "postgres", "-A", "trust"]
        subprocess.run(
            [*self._as_user, *make, "--no-sync"], check=True, stdout=subprocess.DEVNULL, cwd=home
        )

    def command(self) -> list[str]:
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": self.port,
            "unix_socket_directories": self.home,
            "fsync": "off",
            "shared_buffers": "1GB",
            "max_wal_size": "4GB",
        }
        words = [*self._as_user, self._program, "-D", str(self._data)]
        for key, value in settings.items():
            words += ["-c", f"{key}={value}"]
        return words

    def stop(self) -> None:
        if self.process.running:
            os.kill(self.process.pid, signal.SIGINT)  # at once, without waiting for clients
        self.process.stop()

    def kill(self) -> None:
        """Kill the server with its children, which a new server would wait for."""
        pids = family(self.process)
        self.process.kill()
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        until(
            lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids),
            seconds=30,
            what="the processes of PostgreSQL end",
        )


def family(child: Child) -> list[int]:
    """Return the process ids of a process and its children."""
    text = Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text()
    return [child.pid, *map(int, text.split())]
