from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from duemq.admin.config_admin import BODY_BYTES_MAX, ConfigProcessor
from duemq_common.data_version import DataVersion
from duemq_common.errors import ConfigError, RequestError
from duemq_common.request import Request, Response


class Rig:
    def __init__(self) -> None:
        self.values = {"fileReservedTime": "72", "brokerName": "b"}
        self.processor = ConfigProcessor(
            lambda: self.values,
            lambda: DataVersion(1, 5),
            self.reconfigure,
            lambda: frozenset({"configBlackList", "brokerConfigPath"}),
        )

    async def reconfigure(self, changes: dict[str, str]) -> None:
        if "x" in changes.values():
            raise ConfigError("fileReservedTime", "x", "must be a whole number")
        self.values |= changes

    async def call(self, code: int, body: bytes = b"") -> Response | None:
        return await self.processor.handlers()[code](Request(code, {}, body))


def test_all_keys_are_shown_sorted_with_the_version(run: Callable[..., Any]) -> None:
    response = run(Rig().call(26))
    assert response.body == b"brokerName=b\nfileReservedTime=72\n"
    assert json.loads(response.fields["version"]) == {
        "counter": 1,
        "stateVersion": 0,
        "timestamp": 5,
    }


@pytest.mark.parametrize(
    ("body", "code", "kept"),
    [
        (b"fileReservedTime=48\n", 0, "48"),
        (b"fileReservedTime = 48", 0, "48"),
        (b"", 0, "72"),
        (b"fileReservedTime=48\nconfigBlackList=\n", 16, "72"),
        (b"fileReservedTime=x\n", 1, "72"),
        (b"\xff=1", 1, "72"),
        (b"a=1\n" * (BODY_BYTES_MAX // 4 + 1), 1, "72"),
    ],
)
def test_changes_are_made_all_or_none(
    run: Callable[..., Any], body: bytes, code: int, kept: str
) -> None:
    rig = Rig()
    try:
        found = run(rig.call(25, body)).code
    except RequestError as refusal:
        found = refusal.code
    assert (found, rig.values["fileReservedTime"]) == (code, kept)
