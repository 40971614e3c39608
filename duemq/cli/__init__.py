"""Command line interface; the only package that prints."""

import gc
import os
import signal
import sys
import traceback
from types import FrameType


def end(number: int, frame: FrameType | None) -> None:
    """End the process in order, also as PID 1 of a container, where a signal has no default."""
    raise SystemExit(128 + number)


def main() -> None:
    """Run `duemq`; the entry point of the distribution."""
    signal.signal(signal.SIGTERM, end)
    gc.disable()  # collections during imports take 10 % of the start and free nothing
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy's BLAS is not used
    from duemq.cli.server_command import server_command

    try:
        server = server_command(sys.argv[1:])
        if server is None:
            from duemq.cli.app import run

            gc.enable()
            run()
        else:
            gc.enable()
            server.run()
    except Exception:  # Typer and the commands have ended the process for all errors they expect
        from duemq.cli.exits import Exit

        traceback.print_exc()
        raise SystemExit(int(Exit.INTERNAL)) from None
