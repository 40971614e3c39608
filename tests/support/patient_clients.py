"""Time limits of clients in tests.

A producer repeats a send that has no response within 3 s, the default. On a busy machine a send can
take longer, and the broker then has the message twice.
"""

from __future__ import annotations

from typing import Final

PREAMBLE: Final = """\
from duemq.client.client import Client

Client.__init__.__kwdefaults__["timeout_s"] = 60.0
"""  # of a program, which has no other part of the tests


def use_patience() -> None:
    """Let requests of clients without a time limit of their own take a minute."""
    exec(PREAMBLE, {})
