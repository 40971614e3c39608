"""Preload of the kernels of a first step, in a thread.

Without it, a message due then would wait some tens of ms for them.
"""

from __future__ import annotations

from message_store.kernels import scan
from message_store.kernels.kept import load_kept
from migration.kernels import route, routed
from timer_store.kernels import chain, transfer, wheel


def preload_kernels() -> None:
    """Load every kernel of counting, transfer and return."""
    load_kept(
        scan.read_frame, scan.valid_units, scan.walk, route.route, routed.levels_of, chain.guess,
        transfer.read_levels, transfer.set_names, wheel.next_live,
    )  # fmt: skip
