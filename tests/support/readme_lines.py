"""Commands of the README's chapter "Use it", run by an installed DueMQ.

    python tests/support/readme_lines.py ENVIRONMENT

ENVIRONMENT is a virtual environment that contains the wheel. The commands run as they are written,
in a temporary home and at the default ports. `.ci/extras` and `make release` call this program.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

README: Final = Path(__file__).resolve().parents[2] / "README.md"
READY: Final = "is ready at"
COMMAND_S: Final = 120
DELIVERED: Final = "order 42"
INSTALLED_ALREADY: Final = "pip install"
AUDIT: Final = "duemq reconcile"
OF_A_STOPPED_STORE: Final = "duemq store verify"


def commands(text: str) -> list[str]:
    """Return the lines of the shell block of the chapter "Use it"."""
    match = re.search(r"^## Use it\n+```sh\n(.*?)^```", text, re.M | re.S)
    assert match, "README.md has no chapter `Use it` with a shell block"
    return match[1].splitlines()


def run(line: str) -> None:
    """Run a command that ends by itself."""
    done = subprocess.run(["bash", "-c", line], timeout=COMMAND_S, check=False)
    if done.returncode:
        sys.exit(f"README.md: exit code {done.returncode}: {line}")


@contextmanager
def started_broker(line: str) -> Iterator[subprocess.Popen[str]]:
    """Start the broker, wait until it is ready, and stop it at the end of the block."""
    with subprocess.Popen(
        ["bash", "-c", f"exec {line}"], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            if not any(READY in output for output in process.stdout):
                sys.exit(f"README.md: the broker is not ready: {line}")
            yield process
        finally:
            stop(process)


def stop(process: subprocess.Popen[str]) -> None:
    """Stop the broker, if it runs."""
    if process.poll() is None:
        process.terminate()
    if process.wait(COMMAND_S):
        sys.exit(f"README.md: the broker ended with {process.returncode}")


def consume(line: str) -> None:
    """Run a consumer until the delayed message arrives; then interrupt it."""
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        ["bash", "-c", f"exec {line}"], stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        for output in process.stdout:
            sys.stdout.write(output)
            if DELIVERED in output:
                process.send_signal(signal.SIGINT)
                return
    sys.exit(f"README.md: the consumer ended without the message: {line}")


def run_all(lines: list[str], *, has_spark: bool) -> None:
    """Run the commands in their order; the broker runs until a command needs a stopped store."""
    started = [line for line in lines if line.startswith("duemq broker")]
    assert len(started) == 1, started
    before = lines[: lines.index(started[0])]
    after = lines[lines.index(started[0]) + 1 :]
    for line in before:
        if not line.startswith(INSTALLED_ALREADY):
            report(line)
            run(line)
    report(started[0])
    with started_broker(started[0]) as broker:
        for line in after:
            if line.startswith(AUDIT) and not has_spark:
                continue
            report(line)
            if line.startswith(OF_A_STOPPED_STORE):
                stop(broker)
            if line.startswith("duemq consume"):
                consume(line)
            else:
                run(line)


def report(line: str) -> None:
    """Print a command before it runs."""
    sys.stdout.write(f"$ {line}\n")
    sys.stdout.flush()


def main() -> None:
    """Run the commands with the environment of the command line."""
    environment = Path(sys.argv[1]).resolve()
    has_spark = any(environment.glob("lib/python3*/site-packages/pyspark"))
    os.environ.setdefault("XDG_CACHE_HOME", str(Path.home() / ".cache"))  # of compiled kernels
    with tempfile.TemporaryDirectory() as home:
        os.environ |= {"HOME": home, "PATH": f"{environment / 'bin'}:{os.environ['PATH']}"}
        os.chdir(home)
        run_all(commands(README.read_text()), has_spark=has_spark)


if __name__ == "__main__":
    main()
