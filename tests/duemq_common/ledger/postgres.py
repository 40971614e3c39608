"""A private PostgreSQL server in a temporary directory: a socket there, and a port if needed."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.requirements import Missing

HOW = "PostgreSQL is not installed; on Debian and Ubuntu: apt-get install postgresql"
SETTINGS = ("fsync=off", "shared_buffers=16MB", "max_connections=20")
ACCESS = "local all all trust\nhost all all 127.0.0.1/32 scram-sha-256\n"


def find_program(name: str) -> str:
    """Return the path of a PostgreSQL program, which Debian does not put into the PATH.

    Raises:
        Missing: It is not installed.
    """
    found = [*sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))]
    program = str(found[-1]) if found else shutil.which(name)
    if program is None:
        raise Missing(HOW)
    return program


def unprivileged() -> dict[str, Any]:
    """Return arguments that start a process as another user than root."""
    if os.geteuid() != 0:
        return {}
    names = {user.pw_name: user for user in pwd.getpwall()}
    user = names.get("postgres") or names["nobody"]
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


class Server:
    """One server.

    Args:
        home: an empty directory owned by the user of the server.
        port: Port on the loopback interface, for roles with passwords; 0: none.
    """

    def __init__(self, home: Path, port: int = 0) -> None:
        self.home, self.port = home, port
        self._process: subprocess.Popen[str] | None = None
        self._databases = 0
        data = str(home / "data")
        self._start = [find_program("postgres"), "-D", data, "-k", str(home)]
        if shutil.which("setpriv"):  # the server ends with a killed test run
            self._start = ["setpriv", "--pdeathsig", "INT", *self._start]
        listens = ("listen_addresses=127.0.0.1", f"port={port}") if port else ("listen_addresses=",)
        for setting in (*listens, *SETTINGS):
            self._start += ["-c", setting]
        make = [find_program("initdb"), "-D", data, "-U", "duemq", "-A", "trust"]
        make += ["-E", "UTF8", "--no-sync"]
        subprocess.run(make, **self._how(), check=True, stdout=subprocess.DEVNULL)
        (Path(data) / "pg_hba.conf").write_text(ACCESS)

    def _how(self) -> dict[str, Any]:
        return {"cwd": self.home, "env": {"LC_ALL": "C", "PATH": os.defpath}} | unprivileged()

    def start(self) -> None:
        """Start the server and wait until it accepts connections."""
        assert self._process is None
        self._process = subprocess.Popen(
            self._start, **self._how(), stderr=subprocess.PIPE, text=True
        )
        error_output = self._process.stderr
        assert error_output is not None
        lines = []
        for line in error_output:
            lines.append(line)
            if "ready to accept connections" in line:
                break
        else:
            raise AssertionError("".join(lines))
        self._reader = threading.Thread(
            target=error_output.read
        )  # so that the pipe does not fill up
        self._reader.start()

    def stop(self) -> None:
        """Stop the server immediately, without waiting for clients."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGINT)
        self._process.wait(timeout=30)
        self._reader.join()
        assert self._process.stderr is not None
        self._process.stderr.close()
        self._process = None

    def new_database(self) -> str:
        """Return the URL of a new, empty database."""
        import psycopg

        self._databases += 1
        name = f"test_{self._databases}"
        socket = f"host={self.home}" + (f" port={self.port}" if self.port else "")
        with psycopg.connect(f"{socket} user=duemq dbname=postgres", autocommit=True) as at:
            at.execute(f"CREATE DATABASE {name}".encode())
        return f"postgresql://duemq@/{name}?{socket.replace(' ', '&')}"


@contextmanager
def private_server(port: int = 0) -> Iterator[Server]:
    """Run a server while the block is open; `port`: see `Server`.

    Raises:
        Missing: The server or its driver is not installed.
    """
    try:
        import psycopg  # noqa: F401
    except ImportError as error:
        raise Missing("psycopg is not installed: pip install '.[postgresql]'") from error
    find_program("initdb")
    home = Path(tempfile.mkdtemp(prefix="duemq-pg-"))  # a socket's path must be short
    user = unprivileged()
    if user:
        os.chown(home, user["user"], user["group"])
    try:
        server = Server(home, port)
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(home)
