"""VIP channel: a second port of the broker, for older clients that connect to it by default."""

from __future__ import annotations

import logging
from typing import Final

from duemq.configuration.exposure import warn_if_exposed
from duemq.net.server import RemotingServer
from duemq_common.errors import UsageError

log = logging.getLogger(__name__)
VIP_PORT_DISTANCE: Final = 2


async def serve_vip_channel(
    server: RemotingServer, bind_address: str, port: int, *, checked: bool
) -> None:
    """Listen on `port - 2` as well; without that port, the broker continues.

    Args:
        port: Port for clients.
        checked: Whether the broker checks accounts.
    """
    vip_port = port - VIP_PORT_DISTANCE
    try:
        await server.start(bind_address, vip_port)
    except UsageError as error:
        log.warning("%s; continuing without the VIP channel", error)
        return
    purpose, off = "the VIP channel of the broker", "vipChannelEnable=false"
    warn_if_exposed(purpose, bind_address, vip_port, off=off, checked=checked)
