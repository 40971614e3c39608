"""State of brokers over HTTP."""

from __future__ import annotations

import httpx
import pytest


@pytest.mark.parametrize(
    ("path", "key"),
    [
        ("brokers", None),
        ("replicas", "role"),
        ("timers", "pending"),
        ("levels", "levels"),
        ("audits", "running"),
    ],
)
def test_states_of_brokers(shared_api: httpx.Client, path: str, key: str | None) -> None:
    [row] = shared_api.get(f"/api/v1/{path}").json()["brokers"]
    assert "failure" not in row
    assert row["broker"] == "test"
    assert key is None or key in row["state"]
