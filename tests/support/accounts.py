"""Accounts (ACL 2.0) of DueMQ and Apache brokers: configuration keys and users."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping
from typing import Final

from duemq.auth.signature import Credentials
from duemq.client import Client
from duemq_common.codes import RequestCode, ResponseCode

ANSWER_S: Final = 60.0
ROOT: Final = Credentials("root", "root-secret")
KEYS: Final = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "initAuthenticationUser": json.dumps({"username": ROOT.access_key, "password": ROOT.secret}),
}
_AUTH = "org.apache.rocketmq.auth"
PROVIDERS: Final = {
    "authenticationProvider": f"{_AUTH}.authentication.provider.DefaultAuthenticationProvider",
    "authenticationMetadataProvider": (
        f"{_AUTH}.authentication.provider.LocalAuthenticationMetadataProvider"
    ),
    "authorizationProvider": f"{_AUTH}.authorization.provider.DefaultAuthorizationProvider",
    "authorizationMetadataProvider": (
        f"{_AUTH}.authorization.provider.LocalAuthorizationMetadataProvider"
    ),
}
"""Keys that Apache's broker needs in addition."""
Step = tuple[int, Mapping[str, str], bytes]


def user_steps(credentials: Credentials, permissions: Mapping[str, Iterable[str]]) -> list[Step]:
    """Return the requests that create a user and allow it actions by resource."""
    body = json.dumps({"password": credentials.secret, "userType": "Normal"}).encode()
    steps: list[Step] = [(RequestCode.AUTH_CREATE_USER, {"username": credentials.access_key}, body)]
    entries = [
        {"resource": resource, "actions": list(actions), "decision": "Allow"}
        for resource, actions in permissions.items()
    ]
    policies = json.dumps({"policies": [{"policyType": "Custom", "entries": entries}]}).encode()
    subject = {"subject": f"User:{credentials.access_key}"}
    return [*steps, (RequestCode.AUTH_CREATE_ACL, subject, policies)]


def prepare(address: str, credentials: Credentials, steps: Iterable[Step]) -> None:
    """Send requests signed by an account, and check that each succeeds."""

    asyncio.run(prepare_all(address, credentials, steps))


async def prepare_all(address: str, credentials: Credentials, steps: Iterable[Step]) -> None:
    """Send requests signed by an account, and check that each succeeds."""
    async with Client(broker=address, credentials=credentials, timeout_s=ANSWER_S) as client:
        for code, fields, body in steps:
            response = await client.call(address, code, fields, body)
            assert response.code == ResponseCode.SUCCESS, (code, response)
