"""The section of a broker in controller mode."""

from __future__ import annotations

from pathlib import Path

import pytest

from duemq.configuration.controller_config import ControllerConfig
from duemq_common.config import from_properties
from duemq_common.errors import ConfigError


def test_controllers_are_a_list() -> None:
    config = from_properties(
        ControllerConfig,
        {"enableControllerMode": "true", "controllerAddr": "10.0.0.1:9878;c.example:9878"},
    )
    assert config.enabled
    assert config.controllers == ("10.0.0.1:9878", "c.example:9878")


@pytest.mark.parametrize(
    ("properties", "key"),
    [
        ({"enableControllerMode": "true"}, "controllerAddr"),
        ({"controllerAddr": "nonsense"}, "controllerAddr"),
        ({"controllerAddr": ";".join(f"c{n}:1" for n in range(17))}, "controllerAddr"),
        (
            {"brokerHeartbeatInterval": "600", "controllerHeartBeatTimeoutMills": "1100"},
            "controllerHeartBeatTimeoutMills",
        ),
    ],
)
def test_values_that_cannot_work(properties: dict[str, str], key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        from_properties(ControllerConfig, properties)


def test_files_are_below_the_store_unless_they_are_named() -> None:
    root = Path("/data/store")
    assert ControllerConfig().epoch_file(root) == root / "epochFileCheckpoint"
    assert ControllerConfig().identity_file(root) == root / "brokerIdentity"
    named = ControllerConfig(epoch_text="/e", identity_text="/i")
    assert (named.epoch_file(root), named.identity_file(root)) == (Path("/e"), Path("/i"))
