"""Command line interface; the only package that prints."""

import gc
import os


def main() -> None:
    """Run `duemq`; the entry point of the distribution."""
    gc.disable()  # collections during imports take 10 % of the start and free nothing
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy's BLAS is not used
    from duemq.cli.app import run

    gc.enable()
    run()
