"""Preload of send and pull kernels, in a thread after the start.

Without this the first client would wait some tenths of a second for them.
"""

from __future__ import annotations

from duemq import kernels
from duemq.send.kernels import answers, ingest
from message_store.kernels import encode, index
from message_store.kernels.kept import load_kept


def preload_kernels() -> None:
    """Have every kernel between a request and its answer loaded."""
    load_kept(
        ingest.take_sends, encode.prepare, encode.encode, encode.group_units, kernels.count_puts,
        answers.put_answers, index.collect_keys, index.put_keys,
    )  # fmt: skip
