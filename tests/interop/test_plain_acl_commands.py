"""Requests 50 to 54 compared with Apache 4.9.7: the same changes to both, answers and files."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from duemq.auth.signature import Credentials
from duemq.net.client import RemotingClient
from duemq_common.request import Request
from tests.interop.apache import Apache
from tests.interop.test_access_control import admin_of
from tests.support.duemq_server import DueMQ
from tests.support.server import Server

ADMIN = Credentials("admin12", "admin-secret")
BOB = {"accessKey": "bob12345", "secretKey": "bob-secret"}
FILES = {
    "plain_acl.yml": """
# a comment that a change loses
globalWhiteRemoteAddresses: [10.1.1.1]
accounts:
- {accessKey: admin12, secretKey: admin-secret, admin: true}
- accessKey: alice12
  secretKey: alice-secret
  whiteRemoteAddress: ''
  admin: false
  defaultTopicPerm: DENY
  defaultGroupPerm: SUB
  topicPerms: [orders=PUB|SUB, closed=DENY]
  groupPerms: [billing=SUB]
- {accessKey: carol12, secretKey: carol-secret}
- {accessKey: dave1234, secretKey: hidden-secret}
""",
    "acl/more.yml": """
globalWhiteRemoteAddresses: [10.2.2.2]
accounts:
- {accessKey: dave1234, secretKey: dave-secret, topicPerms: [orders=PUB]}
dataVersion:
- {counter: 41, timestamp: 1700000000000}
""",
}
STEPS: list[tuple[int, dict[str, str]]] = [
    (52, {}),
    (54, {}),
    (50, BOB | {"topicPerms": "orders=PUB,x = SUB", "groupPerms": "g=SUB", "admin": "true"}),
    (50, BOB | {"defaultTopicPerm": "PUB", "defaultGroupPerm": "DENY"}),
    (50, BOB | {"whiteRemoteAddress": "10.3.3.3", "topicPerms": "a=SUB,"}),
    (50, {"accessKey": "alice12", "secretKey": "other-secret"}),
    (50, {"accessKey": "dave1234", "secretKey": "dave-secret", "defaultTopicPerm": "SUB|PUB"}),
    (50, {"accessKey": "erin1234"}),
    (50, {"secretKey": "erin-secret"}),
    (50, {"accessKey": "short", "secretKey": "long-secret"}),
    (50, {"accessKey": "alice12", "secretKey": "short"}),
    (50, {"accessKey": "frank123", "secretKey": "short"}),
    (50, BOB | {"topicPerms": "orders"}),
    (50, BOB | {"topicPerms": "orders=PUP"}),
    (50, BOB | {"groupPerms": "a=b=c"}),
    (50, BOB | {"groupPerms": ""}),
    (51, {"accessKey": "carol12"}),
    (51, {"accessKey": "carol12"}),
    (51, {"accessKey": "unknown1"}),
    (51, {"accessKey": ""}),
    (51, {}),
    (53, {"globalWhiteAddrs": "10.4.4.4,10.5.5.*", "aclFileFullPath": "{conf}/plain_acl.yml"}),
    (53, {"globalWhiteAddrs": "10.6.6.6", "aclFileFullPath": "{conf}/acl/more.yml"}),
    (53, {"globalWhiteAddrs": "10.7.7.7", "aclFileFullPath": ""}),
    (53, {"globalWhiteAddrs": "10.8.8.8", "aclFileFullPath": "/nonexistent/x.yml"}),
    (53, {"globalWhiteAddrs": "10.8.8.8", "aclFileFullPath": "{conf}/acl"}),
    (53, {"aclFileFullPath": "{conf}/plain_acl.yml"}),
    (52, {}),
    (54, {}),
]
Answer = tuple[int, str | None, Any, Any]


def conf_of(server: Server) -> Path:
    return server.home / "rmq" / "conf"


def write_files(home: Path) -> None:
    for name, text in FILES.items():
        path = home / "rmq" / "conf" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o600)


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[tuple[Server, Server]]:
    """Apache's broker and ours, each with the same files."""
    apache = Apache("4.9.7", tmp_path / "a", keys={"aclEnable": "true"}, heap="512m")
    keys = {"aclEnable": "true", "rocketmqHome": str(tmp_path / "b" / "rmq")}
    ours = DueMQ(tmp_path / "b", keys=keys)
    for server in (apache, ours):
        write_files(server.home)
    with apache, ours:
        yield apache, ours


def without_places(value: Any, server: Server) -> Any:
    """Return a value without times, and with placeholders for paths and addresses."""
    text = json.dumps(value).replace(str(conf_of(server)), "CONF")
    text = text.replace(server.broker_address, "ADDRESS")
    text = re.sub(r'(timestamp\\*": ?)\d+', r"\g<1>0", text)
    return json.loads(text)


def by_file(text: str) -> str:
    """Return the versions of files sorted by name; Apache sends them in hash table order."""
    return json.dumps(sorted(json.loads(text).items()))


def written_versions(server: Server) -> dict[str, int]:
    """Return the counter in each file by its path; 0 without one."""
    versions = {}
    for name in FILES:
        path = conf_of(server) / name
        data_version = yaml.safe_load(path.read_text()).get("dataVersion")
        versions[str(path)] = data_version[0]["counter"] if data_version else 0
    return versions


async def stable_versions(client: RemotingClient, server: Server) -> dict[str, str]:
    """Return the header of a response to 52 with the versions that the files have.

    Apache reads changed files in another thread, every 500 ms. It may have read the file before
    the last change and then reports the previous version until it reads the file again.
    """
    deadline = time.monotonic() + 60
    while True:
        response = await client.call(Request(52, {}, version=399), timeout_s=60)
        header = dict(response.fields or {})
        reported = json.loads(header["allAclFileVersion"])
        counters = {path: version["counter"] for path, version in reported.items()}
        if counters == written_versions(server):
            return header
        assert time.monotonic() < deadline, (counters, written_versions(server))
        await asyncio.sleep(0.1)


async def responses(server: Server) -> list[Answer]:
    """Make all requests; return code, remark, header and body of each answer."""
    found: list[Answer] = []
    async with RemotingClient(server.broker_address, sign=ADMIN.sign) as client:
        for code, fields in STEPS:
            named = {k: v.replace("{conf}", str(conf_of(server))) for k, v in fields.items()}
            response = await client.call(Request(code, named, version=399), timeout_s=60)
            header = dict(response.fields or {})
            if code == 52:  # Apache changes `version` later, when it reads the default file again
                header = await stable_versions(client, server)
                header |= {"version": "", "allAclFileVersion": by_file(header["allAclFileVersion"])}
            body = json.loads(bytes(response.body)) if response.body else None
            one = (response.code, response.remark or None, header, body)
            found.append(tuple(without_places(one, server)))
    return found


def files_of(server: Server) -> dict[str, Any]:
    return {
        name: without_places(yaml.safe_load((conf_of(server) / name).read_text()), server)
        for name in FILES
    }


@pytest.mark.extended
def test_answers_and_files_are_those_of_apache_4(servers: tuple[Server, Server]) -> None:
    theirs, ours = (asyncio.run(responses(server)) for server in servers)
    pairs = zip(STEPS, theirs, ours, strict=True)
    different = [(step, their, our) for step, their, our in pairs if their != our]
    assert not different, "\n".join(f"{step}\n  {their}\n  {our}" for step, their, our in different)
    their_files, our_files = map(files_of, servers)
    assert our_files == their_files, f"{our_files}\n{their_files}"
    assert {code for code, *_ in ours} == {0, 209, 210, 211}


@pytest.mark.extended
def test_mqadmin_manages_accounts(tmp_path: Path) -> None:
    write_files(tmp_path)
    keys = {"aclEnable": "true", "rocketmqHome": str(tmp_path / "rmq")}
    with DueMQ(tmp_path, keys=keys) as server:
        credentials = (ADMIN.access_key, ADMIN.secret)
        admin = admin_of(server, tmp_path / "admin", credentials, version="4.9.7")
        at = ("-b", server.broker_address)
        path = str(conf_of(server) / "plain_acl.yml")
        bob = ("-a", "bob12345", "-s", "bob-secret", "-t", "orders=PUB", "-m", "false")
        assert "success" in admin("updateAclConfig", *at, *bob)
        addresses = ("-g", "10.4.4.4,10.5.5.*", "-p", path)
        assert "success" in admin("updateGlobalWhiteAddr", *at, *addresses)
        shown = admin("getAccessConfigSubCommand", *at)
        assert re.search(r"accessKey +: bob12345\n +secretKey +: bob-secret", shown)
        assert "[10.2.2.2, 10.4.4.4, 10.5.5.*]" in shown
        assert re.search(rf"{path} +2 ", admin("clusterAclConfigVersion", *at))
        assert "success" in admin("deleteAccessConfig", *at, "-a", "bob12345")
        assert "bob12345" not in admin("getAclConfig", *at)
