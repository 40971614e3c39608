"""The command line. Only this package prints."""

import gc
import os


def main() -> None:
    """Run `duemq`; the entry point of the distribution."""
    gc.disable()  # imported objects stay alive: collecting them again and again takes 10 %
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy's; we multiply no matrices
    from duemq.cli.app import run

    gc.enable()
    run()
