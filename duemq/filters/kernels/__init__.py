"""Compiled evaluation of filters over the records of a log.

    values     finds the values of named properties in a property text
    numbers    parses numbers whose value in Java is certain
    match      evaluates the operations of a filter on these values

A record that the kernels cannot decide is UNDECIDED: the closure of the expression decides it.
"""

from __future__ import annotations

import message_store.kernels  # noqa: F401  sets the cache directory before anything compiles
