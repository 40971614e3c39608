"""Access tokens: limited in time and number, revoked when the account changes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from duemq.auth.signature import Credentials
from duemq.broker.broker import Broker
from duemq.client import Admin, Client
from duemq.http.standalone import ConsoleOptions, serving_console
from duemq.http.tokens import ACCOUNT_TOKENS_MAX, LIFETIME_S, TOKENS_MAX, Tokens
from duemq_common.codes import RequestCode
from tests.duemq.http.rig import api
from tests.support.accounts import KEYS, ROOT, user_steps
from tests.support.running_broker import running, small

ANN = Credentials("ann", "ann-secret")
PATH = "/api/v1/topics"


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


async def token_of(client: httpx.AsyncClient, account: Credentials) -> str:
    pair = (account.access_key, account.secret)
    response = await client.post("/api/v1/tokens", auth=pair)
    assert response.status_code == 201, response.text
    assert response.json()["token_type"] == "Bearer"
    assert response.json()["expires_in"] == LIFETIME_S
    return str(response.json()["access_token"])


async def change(broker: Broker, code: int, fields: dict[str, str], body: Any = None) -> None:
    async with Client(broker=broker.address, credentials=ROOT) as client:
        await client.ask(broker.address, code, fields, json.dumps(body or {}).encode())


async def create_ann(broker: Broker) -> None:
    async with Admin(broker=broker.address, credentials=ROOT) as admin:
        await admin.create_topic("T")
    async with Client(broker=broker.address, credentials=ROOT) as client:
        for code, fields, body in user_steps(ANN, {"Topic:T": ["Pub", "Sub", "Get"]}):
            await client.ask(broker.address, code, fields, body)


def test_a_token_stands_for_its_account(tmp_path: Path) -> None:
    async def main() -> None:
        async with api(tmp_path, **KEYS) as (broker, client):
            await create_ann(broker)
            token = await token_of(client, ROOT)
            assert (await client.get(PATH, headers=bearer(token))).status_code == 200
            assert (await client.get(PATH, headers=bearer("x" + token))).status_code == 401
            again = await client.post("/api/v1/tokens", headers=bearer(token))
            assert again.status_code == 403
            ended = await client.delete("/api/v1/tokens", headers=bearer(token))
            assert ended.json() == {"revoked": 1}
            assert (await client.get(PATH, headers=bearer(token))).status_code == 401
            limited = await token_of(client, ANN)  # the broker checks its permissions
            refused = await client.get("/api/v1/levels", headers=bearer(limited))
            assert "failure" in refused.json()["brokers"][0]
            await token_of(client, ANN)
            pair = (ANN.access_key, ANN.secret)
            assert (await client.delete("/api/v1/tokens", auth=pair)).json() == {"revoked": 2}

    asyncio.run(main())


@pytest.mark.parametrize(
    ("code", "body"),
    [
        (RequestCode.AUTH_UPDATE_USER, {"password": "other-secret"}),
        (RequestCode.AUTH_UPDATE_USER, {"userStatus": "disable"}),
        (RequestCode.AUTH_DELETE_USER, None),
    ],
    ids=["secret", "disabled", "deleted"],
)
def test_a_token_ends_when_its_account_changes(tmp_path: Path, code: int, body: Any) -> None:
    async def main() -> None:
        async with api(tmp_path, **KEYS) as (broker, client):
            await create_ann(broker)
            token = await token_of(client, ANN)
            await change(broker, code, {"username": ANN.access_key}, body)
            assert (await client.get(PATH, headers=bearer(token))).status_code == 401

    asyncio.run(main())


def test_without_accounts_there_are_no_tokens(shared_api: httpx.Client) -> None:
    assert shared_api.post("/api/v1/tokens").status_code == 400
    assert shared_api.get(PATH, headers=bearer("x")).status_code == 401


def test_a_console_asks_a_broker_before_it_issues_a_token(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(small(tmp_path, **KEYS)) as (broker, _):
            await create_ann(broker)

            def connect(credentials: Credentials | None) -> Client:
                return Client(broker=broker.address, credentials=credentials)

            options = ConsoleOptions(port=0, has_accounts=True)
            async with (
                serving_console(connect, options) as port,
                httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client,
            ):
                wrong = await client.post("/api/v1/tokens", auth=(ANN.access_key, "wrong"))
                assert wrong.status_code == 403
                token = await token_of(client, ANN)
                message = {"topic": "T", "body": "b"}
                sent = await client.post("/api/v1/messages", json=message, headers=bearer(token))
                assert sent.status_code == 201, sent.text
                await change(broker, RequestCode.AUTH_DELETE_USER, {"username": ANN.access_key})
                refused = await client.post("/api/v1/messages", json=message, headers=bearer(token))
                assert refused.status_code == 403

    asyncio.run(main())


class TestTable:
    def setup_method(self) -> None:
        self.now_s = 0.0
        self.tokens = Tokens(lambda: self.now_s)

    def test_a_token_ends_after_its_lifetime(self) -> None:
        token = self.tokens.issue(ANN)
        self.now_s = LIFETIME_S - 1
        assert self.tokens.find(token) == ANN
        self.now_s = LIFETIME_S
        assert self.tokens.find(token) is None
        self.tokens.issue(ROOT)
        assert len(self.tokens) == 1

    def test_the_tokens_of_an_account_are_limited(self) -> None:
        other = self.tokens.issue(ROOT)
        made = [self.tokens.issue(ANN) for _ in range(ACCOUNT_TOKENS_MAX + 1)]
        assert self.tokens.find(made[0]) is None
        assert self.tokens.find(made[1]) == ANN
        assert self.tokens.find(other) == ROOT

    def test_all_tokens_are_limited(self) -> None:
        first = self.tokens.issue(ROOT)
        for number in range(TOKENS_MAX):
            self.tokens.issue(Credentials(f"a{number}", "s"))
        assert len(self.tokens) == TOKENS_MAX
        assert self.tokens.find(first) is None
