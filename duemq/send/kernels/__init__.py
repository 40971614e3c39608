"""Compiled loops of `send`: frames to PUT rows, PUT rows to response frames.

    text         JSON strings and numbers
    header       JSON header to spans of its fields
    properties   property text to PUT columns
    ingest       frames of one connection to rows of a batch
    responses    rows of a batch to response frames

The kernels handle common frames and leave all others to the *Python path*, the handlers in Python.
Both paths produce the same columns and bytes. No kernel reads or writes outside its arrays.
"""

from __future__ import annotations

import message_store.kernels  # noqa: F401  sets the cache directory before anything compiles
