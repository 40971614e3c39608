"""Compiled evaluation of filters over the records of a log.

    values     property text to the places of named values
    numbers    text to numbers, where the result is certainly Java's
    match      places to the value of a filter, by its operations

A record that the kernels cannot decide is UNDECIDED: the closure of the expression decides it.
"""

from __future__ import annotations

import message_store.kernels  # noqa: F401  sets the cache directory before anything compiles
