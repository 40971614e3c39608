"""Compiled loops of `send`: frames to PUT rows, PUT rows to response frames.

    text         JSON strings and numbers
    header       JSON header to spans of its fields
    properties   property text to PUT columns
    ingest       frames of one connection to rows of a batch
    answers      rows of a batch to answer frames

Whatever a kernel does not take for certain it leaves to the plain way; what it takes, the plain
way would take too, with the same columns and bytes. No kernel reads or writes past its bounds.
"""

from __future__ import annotations

import message_store.kernels  # noqa: F401  sets the cache directory before anything compiles
