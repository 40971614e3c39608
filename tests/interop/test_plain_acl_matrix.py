"""Decisions of ACL 1.0 compared with Apache 4.9.7: one plain_acl.yml, the same requests to both."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from duemq.auth.signature import Credentials
from duemq.net.client import RemotingClient
from tests.interop.apache import Apache
from tests.interop.test_access_matrix import (
    GROUPS,
    NOWHERE,
    TOPICS,
    Cell,
    call,
    foreign_retry,
    in_phases,
    of_both,
    of_topic,
)
from tests.support.duemq_server import DueMQ
from tests.support.server import Server

SEED = 4_907
ACCOUNTS = 20
CELLS_MIN = 1_000
PERMISSIONS = ("PUB", "SUB", "PUB|SUB", "SUB|PUB", "DENY")
ADDRESSES = ("", "", "", "10.0.0.1", "127.0.0.1", "127.0.0.*", "10.0.1-5.*", "127.0.0.{1,2}")
# With several resources, the order of a Java map selects the one in the remark.
EITHER = "No default permission"
# A permitted 37 may get no response; Apache's broker does not check locks (41, 42).
UNCHECKED = {37, 41, 42}


def acl_of(users: list[Credentials]) -> str:
    """Return a random plain_acl.yml; JSON is YAML."""
    chance = random.Random(SEED)
    accounts = []
    for user in users:
        account: dict[str, object] = {"accessKey": user.access_key, "secretKey": user.secret}
        account["whiteRemoteAddress"] = chance.choice(ADDRESSES)
        account["admin"] = chance.random() < 0.3
        account["defaultTopicPerm"] = chance.choice(PERMISSIONS)
        account["defaultGroupPerm"] = chance.choice(PERMISSIONS)
        for member, names in (("topicPerms", TOPICS[:3]), ("groupPerms", GROUPS)):
            if chance.random() < 0.7:
                some = chance.sample(names, chance.randint(1, 3))
                account[member] = [f"{name}={chance.choice(PERMISSIONS)}" for name in some]
        accounts.append(account)
    return json.dumps({"globalWhiteRemoteAddresses": ["10.9.9.*"], "accounts": accounts})


def cells(users: list[Credentials]) -> list[Cell]:
    """Return all cells."""
    requests = [each for topic in TOPICS for each in of_topic(topic)]
    requests += [each for t in TOPICS for g in GROUPS for each in of_both(t, g)]
    for group in GROUPS:
        requests.append((35, {"clientID": "c", "consumerGroup": group}, b""))
        requests.append((36, {"group": group, "offset": NOWHERE, "delayLevel": "0"}, b""))
        requests.append((38, {"consumerGroup": group}, b""))
        requests.append((207, {"groupName": group}, b""))
    strangers = (None, Credentials("absent12", "x"), Credentials(users[0].access_key, "wrong"))
    found = [Cell(credentials, *each) for credentials in (*users, *strangers) for each in requests]
    found = [cell for cell in found if cell.code not in UNCHECKED]
    random.Random(SEED).shuffle(found)
    return found


async def refusals(server: Server, requested: list[Cell]) -> list[str | None]:
    """Return the text of each refusal, None for a request that was handled."""
    async with RemotingClient(server.broker_address) as client:

        async def refusal(cell: Cell) -> str | None:
            response = await call(client, cell)
            _, found, text = (response.remark or "").partition("AclException: ")
            if not found:
                return None
            assert response.code == 1
            text = text.partition(", org.apache")[0]
            return EITHER if text.startswith(EITHER) else text

        return await in_phases(requested, refusal)


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[tuple[Server, Server, list[Credentials]]]:
    """Apache's broker and ours with one plain_acl.yml, and its accounts."""
    users = [Credentials(f"account{number}", f"secret-{number}") for number in range(ACCOUNTS)]
    keys = {"aclEnable": "true"}
    apache = Apache("4.9.7", tmp_path / "apache", keys=keys, heap="512m")
    home = tmp_path / "apache" / "rmq"
    (home / "conf" / "plain_acl.yml").write_text(acl_of(users))
    (home / "conf" / "plain_acl.yml").chmod(0o600)
    ours = DueMQ(tmp_path / "duemq", keys=keys | {"rocketmqHome": str(home)})
    with apache, ours:
        yield apache, ours, users


@pytest.mark.extended
def test_every_cell_is_decided_as_apache_4_decides_it(
    servers: tuple[Server, Server, list[Credentials]],
) -> None:
    apache, server, users = servers
    requested = cells(users)
    assert len(requested) >= CELLS_MIN
    theirs, ours = (asyncio.run(refusals(each, requested)) for each in (apache, server))
    pairs = zip(requested, theirs, ours, strict=True)
    different = [
        (cell, their, our)
        for cell, their, our in pairs
        if their != our and not (foreign_retry(cell) and our == EITHER)
    ]
    refused = sum(their is not None for their in theirs)
    assert CELLS_MIN / 10 < refused < len(requested) - CELLS_MIN / 10  # both decisions are common
    assert not different, f"{len(different)} of {len(requested)} cells differ: {different[:5]}"
