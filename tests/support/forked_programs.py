"""Programs that run in forks of a process that has imported Numba and nothing of this project.

The import takes half a second, more than most of these programs.
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

SERVER: Final = """
import json, os, sys, traceback
import numba.core.caching, numba.np.numpy_support

def run(job):
    os.chdir(job["folder"])
    os.environ.clear()
    os.environ.update(job["environment"])
    os.dup2(os.open(job["output"], os.O_WRONLY | os.O_CREAT), 1)
    try:
        exec(compile(job["program"], "program", "exec"), {"__name__": "__main__"})
    except BaseException:
        traceback.print_exc(file=sys.stdout)
        return 1
    finally:
        sys.stdout.flush()
    return 0

for line in sys.stdin:
    child = os.fork()
    if child == 0:
        os._exit(run(json.loads(line)))
    print(os.waitpid(child, 0)[1], flush=True)
"""


@cache
def _server() -> subprocess.Popen[str]:
    """Start the process; a process with threads must not fork."""
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER],
        cwd=tempfile.gettempdir(),
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    atexit.register(server.communicate)
    return server


def run_forked(program: str, folder: Path, environment: Mapping[str, str]) -> str:
    """Run a program in a folder, from which it imports; return its output.

    Raises:
        AssertionError: It failed; the message is its output.
    """
    server = _server()
    assert server.stdin is not None
    assert server.stdout is not None
    with tempfile.NamedTemporaryFile() as output:
        job = {"program": program, "folder": str(folder), "output": output.name}
        server.stdin.write(json.dumps(job | {"environment": dict(environment)}) + "\n")
        server.stdin.flush()
        status = server.stdout.readline()
        text = Path(output.name).read_text()
    assert status == "0\n", text
    return text
