"""Compiled loops of `send`: frames to PUT rows, PUT rows to response frames.

    text         JSON strings and numbers
    header       JSON header to spans of its fields
    properties   property text to PUT columns
    ingest       frames of one connection to rows of a batch
    answers      rows of a batch to answer frames

The kernels handle common frames. All others are left to the *plain way*, the handlers in Python.
For a frame that both accept, columns and bytes are the same. No kernel reads or writes outside its
arrays.
"""

from __future__ import annotations

import message_store.kernels  # noqa: F401  sets the cache directory before anything compiles
