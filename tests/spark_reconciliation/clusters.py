"""Spark servers on the loopback interface: a master with workers, and Spark Connect."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pyspark

from spark_reconciliation.spark.session import LIGHT
from tests.support.free_ports import free_ports

TOP = Path(__file__).resolve().parents[2]
HOME = Path(pyspark.__file__).parent
DEFAULTS = TOP / "config" / "spark-defaults.conf"
HOST = "127.0.0.1"
MASTER = "org.apache.spark.deploy.master.Master"
WORKER = "org.apache.spark.deploy.worker.Worker"
CONNECT = "org.apache.spark.sql.connect.service.SparkConnectServer"
FOR_FEW_ROWS = {
    "spark.driver.extraJavaOptions": LIGHT,
    "spark.executor.extraJavaOptions": LIGHT,
    "spark.executor.memory": "512m",
    "spark.executor.memoryOverhead": "64m",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
SMALL = tuple(word for key, value in FOR_FEW_ROWS.items() for word in ("--conf", f"{key}={value}"))
TIMEOUT_S = 300


def environment(home: Path, *, tree: bool = True) -> dict[str, str]:
    """Return the environment of servers and programs: this Python, this tree, loopback."""
    top = str(TOP) if tree else ""
    path = os.pathsep.join(filter(None, (top, os.environ.get("PYTHONPATH", ""))))
    own = {
        "PYTHONPATH": path,
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_HOME": str(HOME),
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": HOST,
        "SPARK_WORKER_DIR": str(home / "work"),
        "SPARK_LOCAL_DIRS": str(home / "local"),
        "SPARK_DAEMON_MEMORY": "512m",
        "SPARK_DAEMON_JAVA_OPTS": LIGHT,
    }
    return os.environ | own


@contextmanager
def server(home: Path, ready: str, *words: str, tree: bool = True) -> Iterator[None]:
    """Start a Spark server; the block begins when it prints `ready`."""
    if shutil.which("setpriv"):  # the server ends with a killed test run
        words = ("setpriv", "--pdeathsig", "KILL", *words)
    process = subprocess.Popen(
        words,
        cwd=home,
        env=environment(home, tree=tree),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    lines, reader = [], None
    try:
        for line in process.stdout:
            lines.append(line)
            if ready in line:
                break
        else:
            raise AssertionError("".join(lines[-60:]))
        reader = threading.Thread(
            target=process.stdout.read, daemon=True
        )  # keeps the pipe from filling up
        reader.start()
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if reader is not None:
            reader.join()
        process.stdout.close()


@contextmanager
def cluster(home: Path, workers: int, *, tree: bool = True) -> Iterator[str]:
    """Start a master and workers with one core each; yield the URL of the master.

    Args:
        tree: Whether the workers can import this tree.
    """
    [port] = free_ports(1)
    url = f"spark://{HOST}:{port}"
    run = str(HOME / "bin" / "spark-class")
    where = ("--host", HOST, "--webui-port", "0")
    with ExitStack() as stack:
        stack.enter_context(server(home, "New state: ALIVE", run, MASTER, *where, "-p", str(port)))
        for _ in range(workers):
            words = (run, WORKER, *where, "-c", "1", "-m", "1g", url)
            registered = "Successfully registered with master"
            stack.enter_context(server(home, registered, *words, tree=tree))
        yield url


@contextmanager
def connect_server(home: Path) -> Iterator[str]:
    """Start a Spark Connect server with one core; yield its URL."""
    [port] = free_ports(1)
    words = (
        str(HOME / "bin" / "spark-submit"),
        "--master",
        "local[1]",
        *SMALL,
        "--conf",
        f"spark.connect.grpc.binding.port={port}",
        "--conf",
        "spark.ui.enabled=false",
        "--class",
        CONNECT,
        "spark-internal",
    )
    with server(home, "Spark Connect server started", *words):
        yield f"sc://{HOST}:{port}"


@contextmanager
def kills(home: Path, logged: str, count: int) -> Iterator[list[str]]:
    """Kill executors of the next application once their logs have a pattern; yield their numbers.

    Args:
        count: Number of executors to kill.
    """
    before = set((home / "work").glob("app-*"))
    killed: list[str] = []
    ended = threading.Event()

    def watch() -> None:
        while len(killed) < count and not ended.wait(0.02):
            for log in (home / "work").glob("app-*/*/stderr"):
                folder = log.parent
                is_next = folder.parent not in before and folder.name not in killed
                if is_next and re.search(logged, log.read_text()) and kill_in(folder):
                    killed.append(folder.name)
                    break

    watcher = threading.Thread(target=watch, name="kills")
    watcher.start()
    try:
        yield killed
    finally:
        ended.set()
        watcher.join()


def kill_in(folder: Path) -> bool:
    """Kill the executor that works in a directory; return whether there is one."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):  # processes that have ended
                if (entry / "cwd").readlink() == folder:
                    os.kill(int(entry.name), signal.SIGKILL)
                    return True
    return False


def run(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a program until it ends."""
    return subprocess.run(
        words,
        cwd=home,
        env=environment(home),
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )
