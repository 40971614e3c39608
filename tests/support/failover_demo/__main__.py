"""`make demo-ha`: runs the failover demo."""

from __future__ import annotations

import sys

from duemq.cli.exits import errors_become_exits
from tests.support.failover_demo.demo import run_failover_demo

if __name__ == "__main__":
    with errors_become_exits():
        run_failover_demo(as_json="--json" in sys.argv[1:])
