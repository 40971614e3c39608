"""Names of views: a broker with all plugins has each of them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from duemq.net import view_names
from duemq_common.codes import RequestCode
from duemq_common.request import bytes_of
from tests.support.running_broker import running, small


def test_a_broker_has_each_view(tmp_path: Path) -> None:
    async def main() -> set[str]:
        async with running(small(tmp_path)) as (_, client):
            response = await client.call(RequestCode.GET_VIEW)
            return set(json.loads(bytes_of(response))["views"])

    names = {value for name, value in vars(view_names).items() if name.endswith("_VIEW")}
    with_accounts = {view_names.OPERATORS_VIEW, view_names.RIGHTS_VIEW}
    assert names - with_accounts <= asyncio.run(main())
