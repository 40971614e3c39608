"""Two masters of one name without a controller: both report it, and both continue to serve."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from duemq.namesrv.config import NamesrvConfig
from duemq.namesrv.server import NameServer
from duemq_common.clock import SystemClock
from duemq_common.codes import RequestCode
from tests.support.running_broker import BrokerClient, running, small


async def failure_of(client: BrokerClient) -> str:
    response = await client.call(RequestCode.GET_VIEW, {"view": "replication"})
    return str(json.loads(bytes(response.body))["failure"])


def test_both_masters_show_the_other_one_and_accept_messages(tmp_path: Path) -> None:
    async def main() -> None:
        path = str(tmp_path / "kv.json")
        config = NamesrvConfig(bind_address="127.0.0.1", listen_port=0, kv_config_path=path)
        async with NameServer(config, SystemClock()) as server:
            keys = {"namesrvAddr": f"127.0.0.1:{server.port}", "haListenPort": "0"}
            one = small(tmp_path / "one", registerNameServerPeriod="1000", **keys)
            two = small(tmp_path / "two", registerNameServerPeriod="1300", **keys)
            async with (
                running(one) as (first, to_first),
                running(two) as (second, to_second),
                asyncio.timeout(120),
            ):
                for client, other in ((to_first, second), (to_second, first)):
                    while f"two masters: {other.address}" not in await failure_of(client):
                        pass
                    assert (await client.send("T", b"x")).code == 0

    asyncio.run(main())
