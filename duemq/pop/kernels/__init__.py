"""Kernels of POP."""

from __future__ import annotations

import message_store.kernels  # noqa: F401  sets the cache directory before anything compiles
