"""A name server with accounts, and a broker that registers there."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from duemq.auth.config import AuthConfig
from duemq.auth.signature import Credentials
from duemq.namesrv.config import NamesrvConfig
from duemq.namesrv.name_servers import name_server
from duemq.net.tls import load_tls
from duemq.net.tls_config import TlsConfig
from duemq_common.clock import SystemClock
from duemq_common.codes import RequestCode, ResponseCode
from tests.support.raw_connection import WAIT_S
from tests.support.running_broker import connected, running, small

ROOT = Credentials("root", "root-secret")
BROKER = {"accessKey": "root", "secretKey": "root-secret"}
AUTH = AuthConfig(
    authentication_enabled=True,
    authorization_enabled=True,
    init_user=json.dumps({"username": "root", "password": "root-secret"}),
)


def test_a_name_server_checks_its_accounts(tmp_path: Path) -> None:
    config = NamesrvConfig(
        listen_port=0, bind_address="127.0.0.1", kv_config_path=str(tmp_path / "kv.json")
    )
    tls = load_tls(TlsConfig()).server
    route = {"topic": "TBW102"}

    async def codes(address: str) -> list[int]:
        async with connected(address) as stranger, connected(address, ROOT) as root:
            requested = [
                each.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, route) for each in (stranger, root)
            ]
            return [(await response).code for response in requested]

    async def main() -> None:
        async with name_server(config, AUTH, SystemClock(), tls) as server:
            address = f"127.0.0.1:{server.port}"
            keys = {"namesrvAddr": address}
            async with running(small(tmp_path / "a", **keys)):
                assert await codes(address) == [16, ResponseCode.TOPIC_NOT_EXIST]
            keys["innerClientAuthenticationCredentials"] = json.dumps(BROKER)
            async with running(small(tmp_path / "b", **keys)) as (broker, _):
                [link] = broker.registrar.links.values()
                async with asyncio.timeout(WAIT_S):
                    while await codes(address) != [16, 0]:
                        await link.push([])
            async with connected(address, ROOT) as root:
                made = await root.call(3001, {"username": "bob"}, b'{"password":"x"}')
                assert made.code == 0
        assert "bob" in (tmp_path / "duemq.accounts.json").read_text()

    asyncio.run(main())
