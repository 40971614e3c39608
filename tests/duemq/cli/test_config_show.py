"""`duemq config show`: keys of broker and name server, with the sources of their values."""

from __future__ import annotations

import json
from typing import Any

from tests.support.commands import duemq


def shown(*words: str, env: dict[str, str | None] | None = None) -> dict[str, Any]:
    done = duemq("config", "show", "--json", *words, env=env)
    assert done.returncode == 0, done.stderr
    keys: dict[str, Any] = json.loads(done.stdout)
    return keys


def test_a_name_server_has_the_keys_of_accounts_and_tls() -> None:
    own = ("authenticationEnabled=true", "accountsFile=a.json", "tls.server.mode=enforcing")
    sets = [word for text in own for word in ("--set", text)]
    state = shown("--namesrv", "--changed", *sets)
    assert state["notices"] == []
    assert {f"{key['key']}={key['value']}" for key in state["keys"]} == set(own)


def test_the_address_of_name_servers_in_the_environment_is_no_key_of_a_name_server() -> None:
    env: dict[str, str | None] = {"NAMESRV_ADDR": "127.0.0.1:9876"}
    assert shown("--namesrv", env=env)["notices"] == []
    [key] = shown("--changed", env=env)["keys"]
    assert (key["key"], key["source"]) == ("namesrvAddr", "environment NAMESRV_ADDR")
