"""Requests about pending messages at a replica: refused, with the address of the master.

A replica does not know which messages are pending. Its answer "unknown" would be taken for the
truth by a client that still uses the address of a former master.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from delayed_delivery.names import MASTER_FIELD
from delayed_delivery.plugin import referral_text
from duemq.auth.request_table import ROWS
from duemq.net.dispatcher import Handler
from duemq_common.codes import ResponseCode
from duemq_common.request import Request, Response

AT_MASTER: Final = frozenset(code for code, row in ROWS.items() if row.only_master)
WORK: Final = "knows and decides which messages are pending"


def of_role(
    handlers: Mapping[int, Handler], master_address: Callable[[], str | None]
) -> Mapping[int, Handler]:
    """Return handlers of a broker; on a replica, those of `AT_MASTER` refer to the master.

    Args:
        master_address: Returns `host:port` of the master, empty if it is unknown; None on a master.
    Source: RecallMessageProcessor (SLAVE_NOT_AVAILABLE)
    """
    if master_address() is None:
        return handlers

    async def refer(request: Request) -> Response:
        master = master_address()
        assert master is not None
        text = referral_text(master, WORK)
        return Response(ResponseCode.SLAVE_NOT_AVAILABLE, text, {MASTER_FIELD: master})

    return {code: refer if code in AT_MASTER else each for code, each in handlers.items()}
