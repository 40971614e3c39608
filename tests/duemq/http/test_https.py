"""HTTPS with the certificates of the broker; changed files are used by new connections."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import httpx

from tests.duemq.http.rig import api
from tests.support.certificates import Authority


def test_the_api_has_the_certificates_of_the_broker(tmp_path: Path) -> None:
    async def main() -> None:
        authority, other = Authority(tmp_path), Authority(tmp_path, "other")
        files = authority.issue("broker")
        keys = {
            "tls.server.mode": "enforcing",
            "tls.test.mode.enable": "false",
            "tls.server.certPath": str(files.certificate),
            "tls.server.keyPath": str(files.key),
        }
        async with api(tmp_path, **keys) as (broker, _):
            base = f"https://127.0.0.1:{broker.console_port}"
            trusted = ssl.create_default_context(cafile=str(authority.path))
            async with httpx.AsyncClient(base_url=base, verify=trusted) as client:
                message = {"topic": "T", "body": "b"}
                assert (await client.post("/api/v1/messages", json=message)).status_code == 201
            other.issue("broker")  # into the same files
            trusted = ssl.create_default_context(cafile=str(other.path))
            async with httpx.AsyncClient(base_url=base, verify=trusted) as client:
                assert (await client.get("/livez")).status_code == 200

    asyncio.run(main())
