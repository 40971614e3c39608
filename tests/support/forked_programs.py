"""Programs that run in forks of a process that has imported the modules they need.

The imports take more time than most of these programs. Each has its own signals, files and end.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

NUMBA: Final = ("numba.core.caching", "numba.np.numpy_support")
AUDITS: Final = (
    "duckdb",
    "duemq.cli.app",
    "pyarrow.dataset",
    "pyarrow.parquet",
    "spark_reconciliation.incremental.incremental_audit",
    "spark_reconciliation.jobs.run",
    "spark_reconciliation.local.frame",
)
SERVER: Final = """
import atexit, importlib, json, os, sys, traceback

def run(job):
    os.chdir(job["folder"])
    os.environ.clear()
    os.environ.update(job["environment"])
    for descriptor in (1, 2):
        os.dup2(os.open(job["outputs"][descriptor - 1], os.O_WRONLY), descriptor)
    sys.argv = job["arguments"]
    try:
        exec(compile(job["program"], "program", "exec"), {"__name__": "__main__"})
    except SystemExit as end:
        return end.code or 0
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    return 0

for name in sys.argv[1:]:
    importlib.import_module(name)
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        os._exit(run(json.loads(line)))
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@cache
def _server(modules: tuple[str, ...], path: str) -> subprocess.Popen[str]:
    """Start a process that imports modules; a process with threads must not fork."""
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER, *modules],
        cwd=tempfile.gettempdir(),
        env={**os.environ, "PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    atexit.register(server.communicate)
    return server


def run_forked(
    modules: tuple[str, ...],
    program: str,
    *words: str,
    environment: Mapping[str, str],
    folder: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end.

    Args:
        modules: Modules that the forked process has imported.
        words: Arguments of the program.
        environment: Its whole environment; PYTHONPATH is that of the imports, too.
        folder: Its working directory, from which it imports.
    """
    server = _server(modules, environment.get("PYTHONPATH", ""))
    assert server.stdin is not None
    assert server.stdout is not None
    with tempfile.NamedTemporaryFile() as output, tempfile.NamedTemporaryFile() as errors:
        job = {
            "program": program,
            "arguments": ["-c", *words],
            "environment": dict(environment),
            "folder": str(folder or tempfile.gettempdir()),
            "outputs": [output.name, errors.name],
        }
        server.stdin.write(json.dumps(job) + "\n")
        server.stdin.flush()
        code = int(server.stdout.readline())
        texts = (output.read().decode(), errors.read().decode())
    return subprocess.CompletedProcess(words, code, *texts)
